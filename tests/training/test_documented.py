"""docs/run-folder.md and the code name the same metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from judged_run import run_with
from levelhead.api import train
from levelhead.records import Prompt
from levelhead.tasks.function.task import FunctionTask
from levelhead.training.collect import Collected
from levelhead.training.grpo import _timings
from small_run import recipe

PAGE = Path(__file__).parents[2] / "docs" / "run-folder.md"
EVERYWHERE = {"step", "stage"}
ELSEWHERE = {"time/eval", "eval/<task>/<name>"}
"""Written by evaluations that take their time, and by tasks with numbers of their own."""

REWARDS = """
def flat(prompts, completions, completion_ids, **columns):
    return [float(len(set(ids)) > 4) for ids in completion_ids]


def holes(prompts, completions, completion_ids, **columns):
    return [None if sum(ids) % 4 == 0 else float(sum(ids) % 5) / 4 for ids in completion_ids]
"""


def documented() -> set[str]:
    """Names in the first columns of the tables about ``metrics.jsonl``."""
    section = PAGE.read_text(encoding="utf-8").split("## metrics.jsonl")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def pattern(name: str) -> re.Pattern[str]:
    """What a documented name stands for: ``<task>`` is one part, a term and what comes last may be several."""
    parts = re.split(r"(<\w+>)", name)
    several = {"<term>", parts[-2] if len(parts) > 1 and not parts[-1] else ""}
    return re.compile(
        "".join((".+" if p in several else "[^/]+") if p.startswith("<") else re.escape(p) for p in parts)
    )


def names(run: Path) -> set[str]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {name for line in lines for name in json.loads(line)} - EVERYWHERE


def thirds(_: FunctionTask, prompt: Prompt) -> Mapping[str, str]:
    return {"third": str(len(prompt.messages[-1]["content"]) % 3)}


def variants(folder: Path) -> dict[str, dict[str, Any]]:
    """Recipes that between them ask for everything that writes a metric."""
    rewards = {name: [f"{folder / 'more.py'}:{name}"] for name in ("flat", "holes")}
    off = {"grpo__kl": {}, "grpo__entropy": {}, "grpo__audit__first": 0, "sft": None}
    loss = {"importance": "token_truncate", "dual_clip": 3.0}
    leash = {"coef": 0.1, "where": "reward", "estimator": "k1"}
    one_at_a_time = {"grpo__updates_per_batch": 1, "grpo__steps": 3}
    alike = {"grpo__sampling": {"max_new_tokens": 1, "top_k": 3}}
    return {
        "plain": {"grpo__loss": loss, "tasks__0__shaping": {"clip": [0.0, 0.5]}, "tasks__1__balance": True},
        "merged": {"grpo__merge": {"monitor_every": 1}, **off, **one_at_a_time, **alike},
        "leash": {**off, "grpo__kl": leash, "grpo__loss": {"kind": "cispo"}},
        "ahead": {**off, "grpo__async": 1, "grpo__loss": {"kind": "clip_cov"}, **one_at_a_time},
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


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "more.py").write_text(REWARDS, encoding="utf-8")
    found: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelhead.report.write", lambda _folder: None)
        patch.setattr(FunctionTask, "strata", thirds)
        for name, changes in variants(folder).items():
            train(recipe(folder, **changes), out=folder / name)
            found |= names(folder / name)
        found |= names(run_with(folder / "judged", "Grade: 7", prompt_price=1.0))
    return found | set(_timings(Collected([], env_s=1.0), 1.0, 2.0, ahead=True))


def test_every_metric_that_is_written_is_documented(written: set[str]) -> None:
    patterns = [pattern(name) for name in documented()]
    assert sorted(name for name in written if not any(p.fullmatch(name) for p in patterns)) == []


def test_every_metric_that_is_documented_is_written(written: set[str]) -> None:
    wanted = documented() - ELSEWHERE
    assert len(wanted) > 60
    assert sorted(name for name in wanted if not any(pattern(name).fullmatch(one) for one in written)) == []
