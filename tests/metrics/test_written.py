"""What runs write is what is declared: every name, its range, its lines, and nothing that no run writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrib.fairness.bbq_rows import ambiguous_row, bbq_row, parse
from judged_run import run_with
from levelhead.api import train
from levelhead.contrib.fairness.task import Outcome
from levelhead.contrib.fairness.task import summarize_outcomes as fairness
from levelhead.contrib.faithfulness.data import FaithfulnessItem
from levelhead.contrib.faithfulness.task import summarize_outcomes as faithfulness
from levelhead.contrib.workflow.endpoint import EndpointRunner
from levelhead.contrib.workflow.task import WorkflowTask
from levelhead.metrics import held_out
from levelhead.metrics.base import Metric
from levelhead.metrics.catalogue import METRICS, find
from levelhead.recipe.tasks import Math, Workflow
from levelhead.records import Group, Prompt, Rollout, Score, StepRecord, Turn
from levelhead.rollout.generators.vllm.engine import Engine, _Use
from levelhead.rollout.generators.vllm.probe import Gap
from levelhead.tasks.base import Answer
from levelhead.tasks.environment import EnvironmentTask
from levelhead.tasks.function.task import FunctionTask
from levelhead.tasks.grader import grade_metrics
from levelhead.tasks.math import MathTask
from levelhead.tasks.metering import JudgeUse, Usage, use_metrics
from levelhead.training.advantages import GroupAdvantages
from levelhead.training.batch import make_batch
from levelhead.training.collect import Collected
from levelhead.training.rundir import RunDir
from levelhead.training.step_result import step_timings
from small_run import TINY, recipe

NON_METRIC_KEYS = {"step", "stage"}
ANYBODYS = {"eval/{task}/{name}", "eval/{task}/{page}/{part}"}
"""Names that a user's task or environment chooses; the house's own are declared one by one."""
SLACK = 1e-6
"""Rounding of cosines and shares."""

REWARDS = """
def flat(prompts, completions, completion_ids, log_metric, **columns):
    log_metric("reward", 1.0)
    return [float(len(set(ids)) > 4) for ids in completion_ids]


def holes(prompts, completions, completion_ids, **columns):
    return [None if sum(ids) % 4 == 0 else float(sum(ids) % 5) / 4 for ids in completion_ids]
"""


@dataclass(frozen=True)
class Reading:
    """One number that was written, and on which line; held-out numbers of a task stand under ``eval/<task>/``."""

    name: str
    value: float | str
    stage: str


def readings(run: Path) -> Iterator[Reading]:
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield from (Reading(name, row[name], row["stage"]) for name in row.keys() - NON_METRIC_KEYS)


def thirds(_: FunctionTask, prompt: Prompt) -> Mapping[str, str]:
    return {"third": str(len(prompt.messages[-1]["content"]) % 3)}


def variants(folder: Path) -> dict[str, dict[str, Any]]:
    """Recipes that between them ask for everything that writes a metric."""
    rewards = {name: [f"{folder / 'more.py'}:{name}"] for name in ("flat", "holes")}
    off = {"grpo__kl": {}, "grpo__entropy": {}, "grpo__audit__first": 0, "sft": None}
    loss = {"importance": "token_truncate", "dual_clip": 3.0}
    penalty = {"coef": 0.1, "where": "reward", "estimator": "k1"}
    one_at_a_time = {"grpo__updates_per_batch": 1, "grpo__steps": 3}
    alike = {"grpo__sampling": {"max_new_tokens": 1, "top_k": 3}}
    return {
        "plain": {"grpo__loss": loss, "tasks__0__shaping": {"clip": [0.0, 0.5]}, "tasks__1__balance": True},
        "merged": {"grpo__merge": {"monitor_every": 1}, "grpo__batch_size": 48, **off, **one_at_a_time, **alike},
        "constrained": {
            **off,
            "grpo__kl": penalty,
            "grpo__loss": {"kind": "cispo"},
            "grpo__task_weights": {"kind": "constraint", "least": {"one": 0.3}},
        },
        "rounded": {**one_at_a_time, "model": {"preset": "tiny", "tiny": dict(TINY), "dtype": "bfloat16"}},
        "ahead": {**off, "grpo__async": 2, "grpo__loss": {"kind": "clip_cov"}, **one_at_a_time},
        "redrawn": {
            **off,
            "grpo__dynamic_sampling": 2,
            "grpo__curriculum": {"kind": "learnability"},
            "grpo__loss": {"kind": "kl_cov"},
            "tasks__0__rewards": rewards["flat"],
            "tasks__1__rewards": rewards["holes"],
            "tasks__0__on_reward_error": "drop",
            "tasks__1__on_reward_error": "drop",
        },
    }  # fmt: skip


def of_functions() -> Iterator[Reading]:
    """What it takes a browser or several judges to write, from the functions that write it."""
    several: Any = {"spread": (0.2, 1), "judges": {"mine": JudgeUse(verdicts=2, drift=-0.1)}}
    several |= {"pairs": 4, "turned": 1, "ties": 2}
    judges = {name: JudgeUse(verdicts=2, failures=1, cost=0.5, latencies=[1.0], **several) for name in ("one", "two")}
    turn = Turn((1,), (2,), (-1.0,), (-1.0,), "stop")
    episode = Rollout("p", (turn, turn), Score(1.0), turn_rewards=(0.5, 0.5))
    by_turn = make_batch([Group(Prompt("p", "task", ()), (episode,))], [GroupAdvantages([0.0], False, [1.0])]).values
    for numbers in (step_timings(Collected([], env_s=1.0), 1.0, 2.0, ahead=True), *use_metrics(judges), by_turn):
        yield from (Reading(name, value, "grpo") for name, value in numbers.items())


def of_engines() -> Iterator[Reading]:
    """What it takes a server that samples to write."""
    servers = SimpleNamespace(there=["one"], repeated=0)
    engine = SimpleNamespace(_use=_Use(1, 0.5, [Gap(1e-6, 1e-5)]), servers=servers)
    for name, value in Engine.drain_use(cast(Engine, engine)).items():
        yield from (Reading(name, value, stage) for stage in ("grpo", "eval"))


def of_tasks() -> Iterator[Reading]:
    """What the embedded tasks say of a handful of answers."""
    numbers = [fairness_numbers(), faithfulness_numbers(), environment_numbers(), endpoint_numbers(), judge_numbers()]
    numbers.append(numbers_of(MathTask(Math(kind="math", items=20)), 2))
    numbers.append(numbers_of(WorkflowTask(Workflow(kind="workflow", items=30)), 3))
    for one in numbers:
        yield from (Reading(held_out.NUMBER.of("task", name), value, "eval") for name, value in one.items())


def numbers_of(task: MathTask | WorkflowTask, n: int) -> Mapping[str, float]:
    prompts = list(islice(task.prompts("train", 0), n))
    answers = [Answer(prompt, (task.oracle(prompt) or [""])[0]) for prompt in prompts]
    scores = asyncio.run(task.score_batch(answers))
    return task.summarize([(p, Rollout(p.id, (), score)) for p, score in zip(prompts, scores, strict=True)])


def fairness_numbers() -> Mapping[str, float]:
    items = [*parse(ambiguous_row()), *parse(bbq_row())]
    return fairness([Outcome(item, choice) for item in items for choice in (0, 2)])


def faithfulness_numbers() -> Mapping[str, float]:
    def item(kind: Any, right: str, *, answerable: bool = True) -> FaithfulnessItem:
        return FaithfulnessItem(right, kind, "text", "question", right, "wrong", answerable)

    info = {"exact": 1.0, "f1": 0.5, "abstained": 0.0, "quoted": 1.0, "hallucinated": 0.0}
    items = [item("qa", "a"), item("qa", "unknown", answerable=False), item("general", "yes"), item("general", "no")]
    return faithfulness([(one, Score(1.0, info=info)) for one in items])


def environment_numbers() -> dict[str, float]:
    """Of environments with several pages, and with one that has no name."""
    score = Score(0.5, {"success": 0.0, "partial": 0.5}, info={"steps": 2})
    rows = [(Prompt("", "task", (), facts={"task": page}), Rollout("", (), score)) for page in ("", "enter-text")]
    return dict(EnvironmentTask.summarize(cast(EnvironmentTask, None), rows))


def endpoint_numbers() -> Mapping[str, float]:
    runner = SimpleNamespace(usage=Usage(), _section=SimpleNamespace(cost=lambda *_: 0.5))
    return EndpointRunner.metrics(cast(EndpointRunner, runner))


def judge_numbers() -> Mapping[str, float]:
    rollout = Rollout("", (), Score(1.0, info={"judge": 0.7}))
    return grade_metrics([(Prompt("", "task", ()), rollout)])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[Reading]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "more.py").write_text(REWARDS, encoding="utf-8")
    seen: set[Reading] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelhead.report.write", lambda _folder: None)
        patch.setattr(FunctionTask, "strata", thirds)
        for name, changes in variants(folder).items():
            train(recipe(folder, **changes), out=folder / name)
            seen |= {*readings(folder / name)}
        seen |= {*readings(run_with(folder / "judged", "Grade: 7", prompt_price=1.0))}
    return seen | {*of_functions(), *of_engines(), *of_tasks()}


def test_every_metric_that_is_written_is_declared(written: set[Reading]) -> None:
    assert sorted({one.name for one in written if find(one.name) is None}) == []


def test_every_metric_that_is_declared_is_written(written: set[Reading]) -> None:
    names = {one.name for one in written}
    assert len(METRICS) > 120
    assert [metric.name for metric in METRICS if not any(map(metric.matches, names))] == []


def test_embedded_tasks_declare_their_own_numbers(written: set[Reading]) -> None:
    def is_declared(name: str) -> bool:
        return any(metric.matches(name) for metric in METRICS if metric.name not in ANYBODYS)

    chosen_by_users = {"eval/task/partial", "eval/task/enter-text/partial", "eval/one/reward"}
    assert {one.name for one in written if not is_declared(one.name)} == chosen_by_users


def test_numbers_stand_on_the_lines_that_declare_them(written: set[Reading]) -> None:
    assert [one for one in written if one.stage not in declared(one.name).stages] == []


def test_numbers_lie_in_the_range_that_is_declared(written: set[Reading]) -> None:
    outside = []
    for one in written:
        low, high = declared(one.name).bounds
        if isinstance(one.value, float | int) and not low - SLACK <= one.value <= high + SLACK:
            outside.append((one, low, high))
    assert outside == []


def declared(name: str) -> Metric:
    metric = find(name)
    assert metric is not None, name
    return metric


def test_a_run_that_writes_an_undeclared_metric_fails(tmp_path: Path) -> None:
    record = StepRecord(1, "grpo", {"reward": 1.0, "mood": 1.0, "guard/speed": 2.0})
    with pytest.raises(AssertionError, match=r"without a declaration in .*: guard/speed, mood"):
        RunDir(tmp_path).append("metrics.jsonl", [record])
    assert not (tmp_path / "metrics.jsonl").exists()
