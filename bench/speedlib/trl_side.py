"""Worker: one step of TRL's GRPOTrainer at a time, in TRL's own environment.  Started by ``bench/speed.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from speedlib import workloads
from speedlib.worker import Channel, Clock, memory


def bench_reward(completion_ids: list[list[int]], dead: list[bool], **_: Any) -> list[float]:
    return [workloads.reward(ids, dead=flag) for ids, flag in zip(completion_ids, dead, strict=True)]


class Driver(TrainerCallback):
    """Holds the trainer before every step until it is told what to do."""

    def __init__(self, channel: Channel, baseline: int) -> None:
        self.channel, self.baseline = channel, baseline
        self.commands = channel.commands()
        self.clock = Clock()
        self.trainer: Any = None
        self.batch: list[dict[str, Any]] = []
        self.drawn = 0
        self.started: float | None = None
        self.cpu = 0.0

    def watch(self, trainer: Any) -> None:
        self.trainer = trainer
        self.clock.wrap(trainer, "_generate", "sampling")
        self.clock.wrap(trainer, "_generate_and_score_completions", "scoring")
        self.clock.wrap(trainer, "training_step", "backward")
        generate = trainer._generate

        def counted(prompts: list[Any]) -> Any:
            completions = generate(prompts)
            self.drawn += sum(len(ids) for ids in completions[1])
            return completions

        trainer._generate = counted

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self.started is None:
            self.clock.wrap(self.trainer.optimizer, "step", "optimizer")
            self.clock.wrap(self.trainer.accelerator, "clip_grad_norm_", "optimizer")
            self.channel.send(
                ready=True,
                threads=torch.get_num_threads(),
                versions={"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
            )
        else:
            spent = self.clock.take()
            seconds, cpu = perf_counter() - self.started, process_time() - self.cpu
            self.channel.send(seconds=seconds, cpu=cpu, drawn=self.drawn, version=state.global_step, **spent)
        for command, *rest in self.commands:
            if command == "gradient":
                self.channel.send(loss=self.gradient(Path(rest[0])))
            elif command == "memory":
                self.channel.send(peak=self.peak(), baseline=self.baseline)
            elif command == "step":
                break
        else:
            os._exit(0)  # told to end in the middle of TRL's loop, which has no other way out
        self.drawn = 0
        self.clock.take()
        self.started, self.cpu = perf_counter(), process_time()

    def peak(self) -> int:
        """Bytes at most, above what imports alone take; on a GPU, those of its allocator."""
        on_gpu = torch.cuda.is_available() and not self.trainer.args.use_cpu
        return torch.cuda.max_memory_allocated() if on_gpu else memory("VmHWM") - self.baseline

    def gradient(self, path: Path) -> float:
        """Write the gradient of the compared batch, taken as TRL takes it; returns the loss."""
        from safetensors.torch import save_file

        trainer, model = self.trainer, self.trainer.model
        model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        rows = [(group["prompt"], answer, advantage) for group in self.batch
                for answer, advantage in zip(group["answers"], group["advantages"], strict=True)]  # fmt: skip
        inputs: dict[str, Any] = {
            "prompt_ids": torch.tensor([row[0] for row in rows]),
            "completion_ids": torch.tensor([row[1] for row in rows]),
            "advantages": torch.tensor([row[2] for row in rows]),
        }
        for name in ("prompt", "completion"):
            inputs[f"{name}_mask"] = torch.ones_like(inputs[f"{name}_ids"])
        inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
        if trainer.beta:
            whole = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            with torch.no_grad(), model.disable_adapter():
                statistics = trainer._get_per_token_logps_and_entropies(
                    model, whole, torch.ones_like(whole), inputs["completion_ids"].shape[1]
                )
            inputs["ref_per_token_logps"] = statistics[0]
        size = len(rows) // trainer.args.steps_per_generation
        loss = 0.0
        for start in range(0, len(rows), size):
            part = {name: value[start : start + size] if value.dim() else value for name, value in inputs.items()}
            piece = trainer.compute_loss(model, part)
            trainer.accelerator.backward(piece)
            loss += float(piece.detach())
        save_file(workloads.gradients(model), path)
        model.zero_grad(set_to_none=True)
        return loss


def config(workload: workloads.Workload, folder: Path, options: dict[str, Any]) -> GRPOConfig:
    steps, device = options.pop("accumulate", 1), options.pop("device", "cpu")
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=workload.rows // steps,
        gradient_accumulation_steps=steps,
        num_generations=workload.k,
        max_completion_length=workload.answer,
        generation_kwargs={"min_new_tokens": workload.answer},
        temperature=1.0,
        beta=workload.kl,
        learning_rate=1e-12,  # the same work, and both sides compare gradients at the same weights
        lr_scheduler_type="constant",
        max_steps=1000,
        shuffle_dataset=False,
        use_cpu=device == "cpu",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **{"bf16": False, "gradient_checkpointing": False, **options},
    )


def model_of(workload: workloads.Workload, folder: Path, options: dict[str, Any]) -> Any:
    """The folder's model; with ``random``, weights are made where they are used instead of read."""
    if not options.pop("random", False):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    device = options.get("device", "cpu")
    dtype = torch.bfloat16 if workload.lora and device != "cpu" else torch.float32
    with torch.device(device):
        return AutoModelForCausalLM.from_config(workloads.model_config(workload), dtype=dtype)


def main() -> None:
    channel = Channel()
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    workload, prompts, batch = workloads.load(folder)
    peft_config = None
    if workload.lora:
        from peft import LoraConfig

        peft_config = LoraConfig(
            r=workload.lora, lora_alpha=2 * workload.lora, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    baseline = memory("VmRSS")
    rows = [{"prompt": workloads.text(ids), "dead": workloads.dead(workload, i)} for i, ids in enumerate(prompts)]
    driver = Driver(channel, baseline)
    driver.batch = batch
    trainer = GRPOTrainer(
        model=model_of(workload, folder, options),
        reward_funcs=bench_reward,
        args=config(workload, folder, options),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        peft_config=peft_config,
        callbacks=[driver],
    )
    workloads.fill_adapters(trainer.model)
    driver.watch(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
