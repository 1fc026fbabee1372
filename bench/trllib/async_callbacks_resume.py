"""A script for TRL as users write it: three asynchronous rewards, a callback that stops, and a run that is resumed."""

# ruff: noqa: ARG001, ARG002

import asyncio

from datasets import load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


async def not_empty(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 if completion[0]["content"].strip() else 0.0 for completion in completions]


async def short(completion_ids, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 - len(ids) / 64 for ids in completion_ids]


async def letters(completions, **kwargs):
    await asyncio.sleep(0.01)
    texts = [completion[0]["content"] for completion in completions]
    return [sum(letter.isalpha() for letter in text) / max(1, len(text)) for text in texts]


class StopAt(TrainerCallback):
    def __init__(self, last):
        self.last = last

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.last


args = GRPOConfig(
    output_dir="resumed", max_steps=4, save_steps=1, per_device_train_batch_size=8, num_generations=8,
    max_completion_length=64, report_to="none", use_cpu=True, bf16=False,
)  # fmt: skip
for last in (2, 4):
    trainer = GRPOTrainer(
        model="Qwen/Qwen2-0.5B-Instruct",
        reward_funcs=[not_empty, short, letters],
        args=args,
        train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
        callbacks=[StopAt(last)],
    )
    trainer.train(resume_from_checkpoint=last == 4)
    assert trainer.state.global_step == last
assert [row["step"] for row in trainer.state.log_history if "reward" in row] == [1, 2, 3, 4]
