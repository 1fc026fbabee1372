"""Hold every check of the preflight against sound recipes on a real model: no failure and no warning may come.

    python bench/preflight_sound.py --model DIR [--bbq DIR] [--only NAME]

Twelve recipes: LoRA and all weights, float32 and bfloat16 products, one task and two, a policy as it was released, one
that is sharp (its last norm times three) and one that is flat (times a third).  For each the table has the processor
seconds of the checks, tokens that passed through the model outside of sampling, passes with and without gradient, the
three checks that took longest, and what was warned of or failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUMS = {"kind": "function", "name": "sums", "oracle": "answer", "reward_range": [0.0, 1.0]}
GRPO = {"steps": 20, "batch_size": 48, "group_size": 8, "sampling": {"temperature": 0.7, "max_new_tokens": 24}}
LEASH = {"kl": {"coef": 0.001}, "entropy": {"coef": 0.05}}
LORA = {"lora": {"r": 16}}
REWARD = """
def exact(completions, answer, **_):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [1.0 if t.strip() == a else 0.2 if t.strip().isdigit() else 0.0 for t, a in zip(texts, answer)]
"""
FULL_RATE, LORA_RATE = {"optimizer": {"learning_rate": 2e-6}}, {"optimizer": {"learning_rate": 1e-4}}
SFT = {"sft": {"steps": 20, "batch_size": 16, "optimizer": {"learning_rate": 5e-5}}}


def cases(bbq: str | None) -> dict[str, dict[str, Any]]:
    """The recipes by what is special about them; ``scale`` is that of the last norm, ``tasks`` as in a recipe."""
    fairness = {"kind": "fairness", "path": bbq, "balance": True}
    lora32, lora16 = {"model": {**LORA, "dtype": "float32"}}, {"model": {**LORA, "dtype": "bfloat16"}}
    full32, full16 = {"model": {"dtype": "float32"}}, {"model": {"dtype": "bfloat16"}}
    by_lora, by_full = {**GRPO, **LORA_RATE}, {**GRPO, **FULL_RATE}
    recipes: dict[str, dict[str, Any]] = {
        "LoRA, float32": {**lora32, "grpo": by_lora},
        "LoRA, bfloat16": {**lora16, "grpo": by_lora},
        "all weights, float32": {**full32, "grpo": by_full},
        "all weights, bfloat16": {**full16, "grpo": by_full},
        "LoRA, float32, KL, entropy, sharp": {**lora32, "grpo": {**by_lora, **LEASH}, "scale": 3.0},
        "all weights, float32, KL, entropy, sharp": {**full32, "grpo": {**by_full, **LEASH}, "scale": 3.0},
        "all weights, bfloat16, KL, entropy, sharp": {**full16, "grpo": {**by_full, **LEASH}, "scale": 3.0},
        "all weights, float32, KL, entropy, flat": {**full32, "grpo": {**by_full, **LEASH}, "scale": 1 / 3},
        "LoRA, float32, gspo, temperature 1": {
            **lora32,
            "grpo": {
                **by_lora,
                "loss": {"kind": "gspo", "aggregation": "sequence_mean"},
                "sampling": {"temperature": 1.0, "max_new_tokens": 24},
            },
        },
    }
    if bbq is not None:
        longer = {**LEASH, "sampling": {"temperature": 1.0, "max_new_tokens": 96}}
        recipes["BBQ, all weights, float32, SFT first, sharp"] = {
            **full32, **SFT, "grpo": {**by_full, **longer}, "tasks": [fairness], "scale": 3.0,
        }  # fmt: skip
        recipes["BBQ, LoRA, bfloat16, SFT first"] = {
            **lora16, **SFT, "grpo": {**by_lora, **longer}, "tasks": [fairness],
        }  # fmt: skip
        recipes["sums and BBQ, LoRA, float32, CAGrad"] = {
            **lora32, "grpo": {**by_lora, **longer, "merge": {"kind": "cagrad"}}, "tasks": [SUMS, fairness],
        }  # fmt: skip
    return recipes


def make_setup(folder: Path, model: str, case: dict[str, Any]) -> Any:
    """The setup of a case."""
    import torch

    from levelhead.recipe import validate
    from levelhead.training.prepare import prepare

    recipe = {key: value for key, value in case.items() if key != "scale"}
    recipe["model"] = {**recipe["model"], "name": model}
    files = {"path": str(folder / "sums.jsonl"), "rewards": [f"{folder / 'sums.py'}:exact"]}
    tasks = recipe.get("tasks", [SUMS])
    recipe["tasks"] = [{**task, **files} if task["kind"] == "function" else task for task in tasks]
    setup = prepare(validate(recipe))
    with torch.no_grad():
        setup.policy.base.get_decoder().norm.weight.mul_(case.get("scale", 1.0))
    return setup


class Meter:
    """What the checks of a setup cost: tokens and passes outside of sampling, processor seconds of each check."""

    def __init__(self, setup: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self._check, self._since = "", time.process_time()
        setup.policy.base.get_decoder().register_forward_hook(self._note, with_kwargs=True)

    def _note(self, _module: Any, _args: Any, kwargs: Any, output: Any) -> None:
        if not self.counts["sampling"]:
            self.counts["tokens"] += kwargs["input_ids"].numel()
            self.counts["passes"] += 1
            self.counts["with gradient"] += output.last_hidden_state.requires_grad

    def begin(self, check: str, _share: float = 1.0) -> None:
        """Count what has passed for the check before; the first of a kind carries what its kind shares."""
        now = time.process_time()
        self.seconds[self._check] += now - self._since
        self._check, self._since = check, now

    @contextlib.contextmanager
    def watch_sampling(self) -> Iterator[None]:
        """Leave out inside what the sampler computes."""
        from levelhead.rollout.generators.local import LocalGenerator

        sample = LocalGenerator.sample

        def counted(generator: Any, *args: Any, **options: Any) -> Any:
            self.counts["sampling"] = 1
            turns = sample(generator, *args, **options)
            self.counts["sampling"] = 0
            return turns

        LocalGenerator.sample = counted  # type: ignore[method-assign]
        try:
            yield
        finally:
            LocalGenerator.sample = sample  # type: ignore[method-assign]


def row(title: str, setup: Any) -> tuple[str, bool]:
    """Check a setup; returns its line of the table, and whether anything was warned of or failed."""
    import torch

    from levelhead.preflight import preflight

    meter = Meter(setup)
    with meter.watch_sampling():
        report = preflight(setup, progress=meter.begin)
    meter.begin("")
    # Whole weights in bfloat16 do hide updates at these rates: that warning is right.
    due = "precision/update" if setup.policy.compute_dtype != torch.float32 and not setup.policy.lora else "none"
    loud = [c for c in report.checks if c.status != "pass"]
    alarms = [f"{c.status} {c.name}: {c.message}" for c in loud if not c.name.startswith(due)]
    rightly = [f"(rightly {c.status} {c.name})" for c in loud if c.name.startswith(due)]
    unjudged = [f"({c.name}: {c.message})" for c in report.checks if c.said.key == "unjudged"]
    counts, slowest = meter.counts, ", ".join(f"`{name}` {s:.1f}" for name, s in meter.seconds.most_common(3))
    passes = f"{counts['passes']} ({counts['with gradient']})"
    cells = [title, f"{sum(meter.seconds.values()):.1f}", f"{counts['tokens']:,}", passes, slowest]
    return f"| {' | '.join([*cells, '; '.join(alarms + rightly + unjudged) or 'none'])} |", bool(alarms)


def main() -> None:
    """Check every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--bbq")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    head = ["recipe", "processor s", "tokens", "passes (with gradient)", "longest", "warnings, failures, (not judged)"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    alarms = 0
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), random.Random(0)
        pairs = [(a, b) for a in range(2, 51) for b in range(2, 51)]
        rng.shuffle(pairs)
        rows = [
            {"prompt": f"What is {a} + {b}? Answer with the number alone.", "answer": str(a + b)}
            for a, b in pairs[:800]
        ]
        (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "sums.py").write_text(REWARD)
        for title, case in cases(arguments.bbq).items():
            if arguments.only in title:
                line, alarm = row(title, make_setup(folder, arguments.model, case))
                alarms += alarm
                print(line, flush=True)
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
