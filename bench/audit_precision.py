"""Whether the audit of signs stops sound runs, and whether it stops the others, where passes round.

Sound runs draw models, tasks, terms, weights, estimators, merging and LoRA from a seed, and make their first three
updates in bfloat16 (one in four in float16), judged by a rehearsal in float32 and by the updates' gradients.  Then each
fault that turns a sign is put into runs with a KL and an entropy term: in float32, in bfloat16, and in bfloat16 as
where memory does not allow the rehearsal.

python bench/audit_precision.py                        print the tables
python bench/audit_precision.py --write                put them into docs/experiments/audit.md
python bench/audit_precision.py --runs 20 --each 3     the same, small
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import levelhead.objective.aggregation.merger as merging
import levelhead.training.signs as signs
from levelhead.objective.aggregation import GradientMerger
from levelhead.objective.audit import SignError
from levelhead.objective.terms import Term
from levelhead.policy import load
from levelhead.recipe.load import parse
from levelhead.records import Prompt, Score
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.make import make_generator
from levelhead.tasks.base import Task
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.registry import make_task
from levelhead.text.tiny import train_tokenizer
from levelhead.training.collect import Collected, Collector
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.loop import EventLoop
from levelhead.training.optim import Updater
from levelhead.training.prepare import make_objective, make_tasks
from levelhead.training.stream import PromptStream

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults.known import inject  # noqa: E402
from faults.probe import ROWS, closeness  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "audit_precision.json"
PAGE = ROOT / "docs" / "experiments" / "audit.md"
START, END = "<!-- audit precision -->", "<!-- end of audit precision -->"
UPDATES = 3
VOCABULARY = 700
TEXT = """
name: probe
model: {{preset: tiny, dtype: {dtype}, tiny: {shape}, lora: {lora}}}
tasks:
  - {{kind: math, items: 24, weight: {weights[0]}}}
  - {{kind: fairness, weight: {weights[1]}}}
  - {{kind: function, name: function, oracle: answer, eval_fraction: 0.1, weight: {weights[2]}}}
grpo:
  steps: 10
  batch_size: 12
  group_size: 4
  loss: {{kind: {loss}}}
  merge: {{kind: {merge}}}
  entropy: {{coef: {entropy}}}
  kl: {{coef: {kl}, estimator: {estimator}}}
  sampling: {{max_new_tokens: {tokens}, temperature: {temperature}}}
  optimizer: {{learning_rate: {rate}}}
  audit: {{first: 3}}
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run.

    Attributes:
        stopped: Update at which the audit stopped it; ``None`` where it did not.
        message: What the audit said.
        hidden: Coefficients of either sign for all that the update's own gradient tells.
        judged: Coefficients that the audit measured.
    """

    stopped: int | None
    message: str
    hidden: int
    judged: int


class Contrasted(Collector):
    """Scores half of the runs' rollouts with numbers of their own, so that rule tasks have contrast too."""

    def __init__(self, *args: Any, drawn: bool) -> None:
        super().__init__(*args)
        self._drawn = drawn

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Any, seed: int) -> Collected:
        """Collect, and score again."""
        collected = await super().collect(prompts, k, controls, seed)
        if not self._drawn:
            return collected
        rng = random.Random(seed)
        groups = []
        for group in collected.groups:
            scored = [(r, rng.choice((0.0, 1.0, rng.random()))) for r in group.rollouts]
            groups.append(
                replace(group, rollouts=tuple(r.scored(replace(r.score or Score(x), total=x)) for r, x in scored))
            )
        return replace(collected, groups=groups)


def settings(rng: random.Random, **fixed: Any) -> dict[str, Any]:
    """A run's settings, by chance unless fixed."""
    width = rng.choice((16, 32, 48))
    shape = {"hidden_size": width, "layers": rng.choice((1, 2)), "heads": 2, "kv_heads": rng.choice((1, 2))}
    drawn: dict[str, Any] = {
        "shape": json.dumps({**shape, "intermediate_size": 2 * width, "vocab_size": VOCABULARY, "context": 768}),
        "dtype": rng.choice(("bfloat16", "bfloat16", "bfloat16", "float16")),
        "lora": rng.choice(("null", "null", "{r: 1}", "{r: 8}")),
        "weights": [rng.choice((0.2, 1.0, 1.0, 4.0)) for _ in range(3)],
        "loss": rng.choice(("ppo_clip", "ppo_clip", "gspo", "cispo")),
        "merge": rng.choice(("sum", "cagrad", "cagrad", "pcgrad", "mean")),
        "entropy": rng.choice((0.0, 1e-4, 0.002, 0.002, 0.02)),
        "kl": rng.choice((0.0, 1e-4, 0.001, 0.01, 0.1)),
        "estimator": rng.choice(("k1", "k2", "k3", "k3")),
        "tokens": rng.choice((6, 12)),
        "temperature": rng.choice((1.0, 1.0, 0.7)),
        "rate": rng.choice((1e-4, 1e-3)),
        "contrast": rng.random() < 0.5,
        "seed": rng.randrange(1 << 30),
    }
    return drawn | fixed


@functools.cache
def tokenizer() -> Any:
    """The tokenizer of all runs, made of some of their text."""
    recipe = parse(TEXT.format(**settings(random.Random(0))), [], source="audit_precision")
    rules = [task for section in recipe.tasks[:2] for task in [make_task(section)]]
    prompts = [prompt for task in rules for prompt in itertools.islice(task.prompts("train", 0), 60)]
    texts = [str(message["content"]) for prompt in prompts for message in prompt.messages]
    return train_tokenizer([*texts, *(f"{row['prompt']} {row['answer']}" for row in ROWS)], VOCABULARY)


def run(drawn_settings: dict[str, Any]) -> Outcome:
    """Make the first updates of a run."""
    recipe = parse(TEXT.format(**drawn_settings), [f"seed={drawn_settings['seed']}"], source="audit_precision")
    section = recipe.tasks[2]
    function = FunctionTask(section, data=[dict(row) for row in ROWS], rewards=closeness)  # type: ignore[arg-type]
    tasks: dict[str, Task] = make_tasks(recipe, {"function": function})
    with mock.patch.object(load, "train_tokenizer", return_value=tokenizer()):
        policy = load.load_policy(recipe.model, seed=recipe.seed)
    policy.disable_dropout()
    grpo = recipe.grpo
    assert grpo is not None
    objective, estimator = make_objective(recipe, grpo, tasks)
    if objective.needs_reference:
        policy.keep_reference(trained=False)
    loop = EventLoop()
    generator = make_generator(policy, loop.waiter)
    stream = PromptStream(list(tasks.values()), [1.0] * len(tasks), derive(recipe.seed, "stream"))
    collector = Contrasted(tasks, policy.codec, generator, loop, drawn=drawn_settings["contrast"])
    updater = Updater(policy.parameters, grpo.optimizer, grpo.steps)
    trainer = GrpoTrainer(
        policy, collector, stream, objective, updater, grpo, derive(recipe.seed, "grpo"), estimator=estimator
    )
    hidden = judged = 0
    try:
        for step in range(1, UPDATES + 1):
            try:
                result = trainer.step(step)
            except SignError as error:
                return Outcome(step, str(error), hidden, judged)
            names = [name for name in result.record.values if name.startswith("audit/")]
            judged += sum(name.endswith("/coef") for name in names)
            hidden += int(result.record.values.get("audit/unjudged", 0.0))
    finally:
        loop.run(generator.close())
        loop.close()
    return Outcome(None, "", hidden, judged)


@contextlib.contextmanager
def lost_in_the_merge(name: str) -> Iterator[None]:
    """The sign of a term is lost between the term and its backward pass."""
    real = merging.scalar_loss

    def loss(terms: Sequence[Term]) -> torch.Tensor:
        other = {"maximize": "minimize", "minimize": "maximize"}
        return real([replace(t, sense=other[t.sense]) if t.name == name else t for t in terms])  # type: ignore[arg-type]

    with mock.patch.object(merging, "scalar_loss", loss):
        yield


@contextlib.contextmanager
def subtracted_task() -> Iterator[None]:
    """The aggregator subtracts the last task's gradient."""
    real = GradientMerger._weights
    with mock.patch.object(GradientMerger, "_weights", lambda self, m: [*real(self, m)[:-1], -real(self, m)[-1]]):
        yield


FAULTS = {
    "entropy-penalised": lambda: inject("entropy-penalised"),
    "entropy-negated-twice": lambda: inject("entropy-negated-twice"),
    "kl-rewarded": lambda: inject("kl-rewarded"),
    "entropy's sign lost in the merge": lambda: lost_in_the_merge("entropy"),
    "KL's sign lost in the merge": lambda: lost_in_the_merge("kl"),
    "reward's sign lost in the merge": lambda: lost_in_the_merge("policy"),
    "a task subtracted by the aggregator": subtracted_task,
}
WITHOUT = "no memory for it"


def precision(kind: str) -> contextlib.AbstractContextManager[Any]:
    """With the rehearsal in float32, or without."""
    if kind == "with":
        return contextlib.nullcontext()
    return mock.patch.object(signs, "why_not_exact", return_value=WITHOUT)


def sound(runs: int, seed: int) -> dict[str, Any]:
    """The first table; what a run's own gradient is not stopped for counts as well where there is no float32."""
    start = time.perf_counter()
    outcomes = []
    for index in range(runs):
        drawn_settings = settings(random.Random(f"{seed}/{index}"))
        outcomes.append(run(drawn_settings))
        if outcomes[-1].stopped:
            print(f"  stopped: {index} {drawn_settings} {outcomes[-1].message}", flush=True)
    row = {
        "runs": runs,
        "stopped": sum(o.stopped is not None for o in outcomes),
        "coefficients": sum(o.judged for o in outcomes),
        "hidden": sum(o.hidden for o in outcomes),
        "seconds_a_run": round((time.perf_counter() - start) / runs, 2),
    }
    print(row, flush=True)
    return row


def power(each: int, seed: int) -> list[dict[str, Any]]:
    """Rows of the second table."""
    rows = []
    for name, fault in FAULTS.items():
        row: dict[str, Any] = {"fault": name, "runs": each}
        for dtype, kind in (("float32", "with"), ("bfloat16", "with"), ("bfloat16", "without")):
            outcomes = []
            with fault(), precision(kind):
                for index in range(each):
                    fixed = {"dtype": dtype, "entropy": 0.002, "kl": 0.01, "merge": "cagrad", "contrast": True}
                    outcomes.append(run(settings(random.Random(f"{seed}/{index}"), **fixed)).stopped)
            row[f"{dtype}/{kind}"] = [sum(s == update for s in outcomes) for update in range(1, UPDATES + 1)]
        rows.append(row)
        print(row, flush=True)
    return rows


def tables(document: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    row = document["sound"]
    lines = ["| sound runs | stopped | coefficients | of them hidden by rounding |", "|---|---|---|---|"]
    lines += [f"| {row['runs']} | {row['stopped']} | {row['coefficients']} | {row['hidden']} |", ""]
    lines += ["| fault | runs | float32 | bfloat16 | bfloat16, float32 withheld |", "|---|---|---|---|---|"]
    columns = ("float32/with", "bfloat16/with", "bfloat16/without")
    lines += [
        f"| {r['fault']} | {r['runs']} | " + " | ".join(", ".join(str(n) for n in r[c]) for c in columns) + " |"
        for r in document["power"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Make the runs, keep the numbers, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="sound runs")
    parser.add_argument("--each", type=int, default=10, help="runs of each fault and precision")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--write", action="store_true", help=f"keep them in results/{RESULTS.name}, and put them into docs"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document = {"sound": sound(arguments.runs, arguments.seed), "power": power(arguments.each, arguments.seed)}
    if arguments.write:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        PAGE.write_text(f"{before}{START}\n{tables(document)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(tables(document))


if __name__ == "__main__":
    main()
