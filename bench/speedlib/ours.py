"""Worker: one Levelhead step at a time.  Started by ``bench/speed.py``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch

import levelhead.policy.load
import levelhead.training.grpo
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo
from levelhead.records import Prompt, Score
from levelhead.tasks.base import Answer, SingleTurnTask
from speedlib import workloads
from speedlib.worker import Channel, Clock, memory


class BenchTask(SingleTurnTask):
    """The workload's prompts, round and round."""

    name = "bench"

    def __init__(self, workload: workloads.Workload, prompts: list[list[int]]) -> None:
        self._prompts = [
            Prompt(f"p{i}", "bench", ({"role": "user", "content": workloads.text(ids)},), (), {"dead": flag})
            for i, ids in enumerate(prompts)
            for flag in [workloads.dead(workload, i)]
        ]

    def prompts(self, *_: object) -> Iterator[Prompt]:
        return iter(self._prompts)

    def score(self, *_: object) -> Score:
        raise AssertionError("score_batch sees the ids")

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        return [Score(workloads.reward(a.token_ids, dead=a.prompt.facts["dead"])) for a in answers]


def load(folder: Path, options: dict[str, Any]) -> Policy:
    """The policy of a workload's folder."""
    from levelhead.policy.load import load_policy
    from levelhead.recipe.model import Model

    workload, _, _ = workloads.load(folder)
    lora = {"r": workload.lora, "alpha": 2 * workload.lora} if workload.lora else None
    settings = {"dtype": options.get("dtype", workload.dtype), "lora": lora, **options.get("model", {})}
    policy = load_policy(Model(name=str(folder), tokenizer=str(folder / "tokenizer"), **settings))
    policy.disable_dropout()
    workloads.fill_adapters(policy.model)
    return policy


def grpo(w: workloads.Workload, settings: dict[str, Any]) -> Grpo:
    """The recipe's section for a workload; ``settings`` are keys of it that win."""
    return Grpo(
        **{
            "steps": 1000,
            "batch_size": w.rows,
            "group_size": w.k,
            "sampling": {"max_new_tokens": w.answer, "min_new_tokens": w.answer - 1},
            "kl": {"coef": w.kl, "gradient": "importance"},  # as TRL's use_bias_correction_kl, on by default
            "audit": {"first": 0},
            "optimizer": {"learning_rate": 1e-12},
            **settings,
        }
    )


class Ours:
    """A trainer on a workload, with a policy that is ready.

    ``options`` may hold recipe keys: ``grpo``, and ``guard``, which is off without them.
    """

    def __init__(
        self,
        workload: workloads.Workload,
        prompts: list[list[int]],
        batch: list[dict[str, Any]],
        policy: Policy,
        options: dict[str, Any],
    ) -> None:
        from levelhead.guard.guard import make_guard
        from levelhead.recipe.guard import Guard
        from levelhead.rollout.generators.make import make_generator
        from levelhead.training.collect import Collector
        from levelhead.training.grpo import GrpoTrainer
        from levelhead.training.loop import EventLoop
        from levelhead.training.objective import Objective
        from levelhead.training.optim import Updater
        from levelhead.training.stream import PromptStream

        self.workload, self.batch, self.policy = workload, batch, policy
        w, recipe = workload, grpo(workload, options.get("grpo", {}))
        if w.kl:
            self.policy.keep_reference(trained=False)
        guard = make_guard(Guard(**options["guard"])) if "guard" in options else None
        task = BenchTask(w, prompts)
        loop = EventLoop()
        self.generator = make_generator(self.policy, loop.waiter)
        collector = Collector({"bench": task}, self.policy.codec, self.generator, loop)
        self.objective = Objective(recipe, {"bench": 1.0}, {"bench": None})
        self.updater = Updater(self.policy.parameters, recipe.optimizer, recipe.steps)
        stream = PromptStream([task], [1.0], 0)
        self.trainer = GrpoTrainer(
            self.policy, collector, stream, self.objective, self.updater, recipe, seed=0,
            observers=[guard] if guard else [],
        )  # fmt: skip
        self.clock = Clock()
        for method in ("prepare", "step"):
            self.clock.wrap(self.updater, method, "optimizer")
        self.clock.wrap(levelhead.training.grpo, "accumulate", "backward")
        self.clock.wrap(self.generator, "sample", "sampling")
        self.done = 0

    def step(self) -> dict[str, float]:
        self.done += 1
        start, cpu = perf_counter(), process_time()
        result = self.trainer.step(self.done)
        seconds, cpu = perf_counter() - start, process_time() - cpu
        spent, timings = self.clock.take(), result.record.timings
        spent |= {"scoring": timings["time/score"]}
        drawn = sum(rollout.length for group in result.groups for rollout in group.rollouts)
        return {"seconds": seconds, "cpu": cpu, "drawn": drawn, "version": self.updater.done, **spent}

    def gradient(self, path: Path) -> float:
        """Write the gradient of the compared batch; returns the loss."""
        from safetensors.torch import save_file

        from levelhead.policy.packing import TokenSequence
        from levelhead.training.batch import Sample
        from levelhead.training.passes import accumulate
        from levelhead.training.update_metrics import UpdateMetrics, summarise

        samples = [
            Sample(
                TokenSequence(tuple(group["prompt"]), tuple(answer), i),
                "bench",
                advantage,
                (0.0,) * len(answer),
                1.0,
                any(group["advantages"]),
                truncated=False,
            )
            for i, group in enumerate(self.batch)
            for answer, advantage in zip(group["answers"], group["advantages"], strict=True)
        ]
        plan = self.objective.plan(samples, temperature=1.0, at_old_policy=True, seed=0)
        metrics = UpdateMetrics()
        tokens = self.trainer.config.tokens_per_microbatch
        accumulate(self.policy, self.objective, plan, tokens, self.trainer.merger, metrics, None)
        self.trainer.merger.finish()
        save_file(workloads.gradients(self.policy.model), path)
        self.policy.model.zero_grad(set_to_none=True)
        self.clock.take()
        return summarise(metrics.read(), plan.shares)["loss"]


def main() -> None:
    channel = Channel()
    baseline = memory("VmRSS")
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    ours = Ours(*workloads.load(folder), load(folder, options), options)
    channel.send(ready=True, versions={"torch": torch.__version__}, threads=torch.get_num_threads())
    for command, *rest in channel.commands():
        if command == "step":
            channel.send(**ours.step())
        elif command == "gradient":
            channel.send(loss=ours.gradient(Path(rest[0])))
        elif command == "memory":
            channel.send(peak=memory("VmHWM") - baseline, baseline=baseline)
        elif command == "profile":
            from speedlib.operators import profiled

            channel.send(table=profiled(ours.step, int(rest[0])))
        else:
            return


if __name__ == "__main__":
    main()
