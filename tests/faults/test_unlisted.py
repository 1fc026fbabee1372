"""Faults that nobody listed: they stand apart from the lab's, put everything back, and are judged by what they add."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import levelhead.objective.advantages
import levelhead.objective.losses
import levelhead.training.advantages
import levelhead.training.batch
import levelhead.training.front
import levelhead.training.group_queue
import levelhead.training.objective
import levelhead.training.run
import levelhead.training.terms
from faults.known import FAULTS
from faults.probes import ECHO, Probe, closeness, difference, trained
from faults.unlisted import KINDS, UNLISTED, Unlisted
from levelhead.objective.aggregation import GradientMerger
from levelhead.objective.losses import Clipped, Inputs
from levelhead.objective.shaping import RewardShaping
from levelhead.policy.backends.cpu.backend import SharedDecoder
from levelhead.policy.policy import Policy
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.rollout.logits import LogitsPipeline
from levelhead.tasks.function import FunctionTask
from levelhead.training.advantages import AdvantageEstimator
from levelhead.training.coefficients import Coefficients
from levelhead.training.collect import Collector
from levelhead.training.evaluator import Evaluator
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.objective import Objective
from levelhead.training.optim import Updater
from levelhead.training.stream import PromptStream
from levelhead.training.weight_copies import WeightCopies

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "experiments" / "faults.md"
TRACKERS = (
    "huggingface/trl",
    "verl-project/verl",
    "OpenRLHF/OpenRLHF",
    "PrimeIntellect-ai/prime-rl",
    "NVIDIA-NeMo/RL",
    "modelscope/ms-swift",
    "allenai/open-instruct",
    "unslothai/unsloth",
    "unslothai/unsloth-zoo",
    "microsoft/agent-lightning",
)
OWNERS: tuple[Any, ...] = (
    levelhead.objective.advantages, levelhead.objective.losses, levelhead.training.batch, levelhead.training.advantages,
    levelhead.training.group_queue, levelhead.training.objective, levelhead.training.terms, levelhead.training.run,
    levelhead.training.front,
    Inputs, RewardShaping, Coefficients,
    GradientMerger, Policy, SharedDecoder, LocalGenerator, LogitsPipeline, FunctionTask, WeightCopies, Collector,
    AdvantageEstimator, Evaluator, GrpoTrainer, Objective, Updater, PromptStream, Clipped,
)  # fmt: skip


@pytest.fixture(autouse=True)
def bench() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path.remove(str(ROOT / "bench"))


def test_there_are_more_than_thirty_over_all_classes_and_none_is_the_labs() -> None:
    counts = Counter(fault.kind for fault in UNLISTED.values())
    assert len(UNLISTED) >= 30
    assert set(counts) == set(KINDS)
    assert not UNLISTED.keys() & FAULTS.keys()


@pytest.mark.parametrize("fault", UNLISTED.values(), ids=UNLISTED)
def test_each_fault_cites_a_thread_of_a_trainer(fault: Unlisted) -> None:
    matches = [re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(issues|pull)/\d+", t) for t in fault.threads]
    assert all(matches)
    assert any(match is not None and match[1] in TRACKERS for match in matches)


@pytest.mark.parametrize("fault", UNLISTED.values(), ids=UNLISTED)
def test_each_fault_changes_our_code_and_puts_it_back(fault: Unlisted) -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    with fault.change():
        assert [dict(vars(owner)) for owner in OWNERS] != before
    assert [dict(vars(owner)) for owner in OWNERS] == before


@pytest.mark.parametrize("fault", UNLISTED.values(), ids=UNLISTED)
def test_the_recipe_of_each_fault_can_be_read(fault: Unlisted) -> None:
    assert Probe(fault.probe, fault.settings, fault.reward, fault.resumes).recipe().grpo is not None


@pytest.mark.parametrize("fault", UNLISTED.values(), ids=UNLISTED)
def test_each_fault_was_measured_and_changes_its_run(fault: Unlisted) -> None:
    row = json.loads((ROOT / "bench" / "results" / "unlisted_faults_before.json").read_text(encoding="utf-8"))[
        fault.name
    ]
    assert row["error"] is None
    assert row["changed"]
    assert f"| `{fault.name}` |" in PAGE.read_text(encoding="utf-8")


def test_a_run_is_the_sound_run_again_unless_a_fault_changes_it(tmp_path: Path) -> None:
    probe = Probe(settings=("sft.steps=2", "grpo.steps=2", "eval.final_items=2"))
    for name in ("one", "two"):
        assert trained(probe, tmp_path / name) == {"stopped": None}
    assert difference(tmp_path / "two", tmp_path / "one") == {"weights": 0.0, "metrics": 0, "best": False}
    with UNLISTED["rewards-never-whitened"].change():
        trained(probe, tmp_path / "three")
    assert difference(tmp_path / "three", tmp_path / "one")["weights"] > 1e-4


def test_the_probes_reward_tells_a_right_answer_from_a_near_one() -> None:
    right = ECHO[0]["answer"]
    assert closeness([right, right[:-1] + "!", ""], [right] * 3) == [1.0, pytest.approx(0.5, abs=0.05), 0.0]


def _row(check: list[str] = [], events: list[tuple[str, int]] = [], **more: Any) -> dict[str, Any]:  # noqa: B006
    return {
        "check": [{"name": name, "status": "fail", "text": "x"} for name in check],
        "events": [{"code": code, "step": step, "severity": "warning", "text": "x"} for code, step in events],
        "doctor": None,
        "stopped": None,
        "difference": {"weights": 1.0, "metrics": 0, "best": False},
        **more,
    }


def test_only_what_the_sound_run_is_not_told_counts_as_a_catch() -> None:
    from faultlib.judge import judge

    fault = UNLISTED["schedule-counts-batches"]
    sound = _row(["a/b"], [("usual", 2)])
    assert judge(fault, _row(["a/b"], [("usual", 5)]), sound).caught == "nobody"
    assert judge(fault, _row(["a/b", "c/d"]), sound).caught == "stopped"
    assert judge(fault, _row(["a/b"], [("other", 7)]), sound).caught == "guard"
    assert judge(fault, _row(["a/b"], [("other", 21)]), sound).caught == "nobody"
    assert judge(fault, _row(["a/b"], stopped="ValueError: x"), sound).caught == "guard"


def test_a_fault_is_named_by_words_that_were_fixed_beforehand() -> None:
    from faultlib.judge import judge

    fault, sound = UNLISTED["schedule-counts-batches"], _row()
    events = [{"code": "c", "step": 3, "severity": "warning", "text": "the learning rate is not the recipe's"}]
    assert judge(fault, {**_row(), "events": events}, sound).naming == ["guard c"]
    assert judge(fault, {**_row(), "events": events}, sound).reached
    assert not judge(fault, _row(events=[("c", 3)]), sound).reached


def test_a_bench_goes_on_where_it_was_left_and_outlives_a_run_without_end(tmp_path: Path) -> None:
    from faultlib.children import make, read

    out = tmp_path / "rows.jsonl"
    make(out, [("one", lambda: {"value": 1}), ("hangs", lambda: time.sleep(60) or {})], limit=2.0)
    make(out, [("one", lambda: {"value": 2}), ("breaks", lambda: {"value": 1 // 0})], limit=2.0)
    rows = read(out)
    assert rows["one"]["value"] == 1
    assert rows["hangs"]["error"] == "no end within 2 seconds"
    assert rows["breaks"]["error"].startswith("ZeroDivisionError")
