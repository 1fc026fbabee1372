"""What a run writes of its rollouts: each with the strata of its prompt and, of several turns, where each ends."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.report.watch.rollouts import Filter, Rollouts
from levelhead.tasks.base import Task
from levelhead.training.rundir import RunDir


class Parity:
    """A task that tells the strata of its prompts, as far as :meth:`RunDir.save_rollouts` asks."""

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        return {"parity": "even" if int(prompt.id) % 2 == 0 else "odd"} if prompt.id.isdigit() else {}


def group(name: str, *texts: tuple[str, ...], task: str = "counting") -> Group:
    prompt = Prompt(name, task, ({"role": "user", "content": "Count."},))
    turn = Turn((1,), (2,), (0.0,), (0.0,), "stop")
    rollouts = [Rollout(name, (turn,) * len(text), Score(float(i)), text=text) for i, text in enumerate(texts)]
    return Group(prompt, tuple(rollouts))


def saved(folder: Path, *groups: Group, **more: Any) -> list[dict[str, Any]]:
    run = RunDir(folder)
    run.claim(resume=False)
    tasks = {"counting": cast(Task, Parity())}
    rows = run.save_rollouts("grpo-000001", "grpo", 1, groups, tasks, **more)
    with gzip.open(folder / "rollouts" / "grpo-000001.jsonl.gz", "rt", encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == rows
    return rows


def test_each_rollout_stands_with_the_strata_of_its_prompt(tmp_path: Path) -> None:
    groups = (group("4", ("a",), ("b",)), group("7", ("c",)), group("none", ("d",)), group("4", ("e",), task="other"))
    rows = saved(tmp_path, *groups)
    assert [row.get("strata") for row in rows] == [{"parity": "even"}] * 2 + [{"parity": "odd"}, None, None]


def test_the_live_page_filters_by_the_strata_that_a_run_writes(tmp_path: Path) -> None:
    saved(tmp_path, group("4", ("a",), ("b",)), group("7", ("c",)))
    answer = Rollouts(tmp_path / "rollouts").page(Filter(stratum="parity=odd"))
    assert [row["completion"] for row in answer["rows"]] == ["c"]
    assert answer["strata"] == ["parity=even", "parity=odd"]


def test_advantages_stand_beside_their_rollouts(tmp_path: Path) -> None:
    rows = saved(tmp_path, group("4", ("a",), ("b",)), group("7", ("c",)), advantages=[[-0.5, 0.5], [0.25]])
    assert [row["advantage"] for row in rows] == [-0.5, 0.5, 0.25]


def test_the_turns_of_an_episode_can_be_parted_again(tmp_path: Path) -> None:
    turns = ("click(1)", "two\n\nparagraphs", "")
    episode, answer = saved(tmp_path, group("4", turns, ("one\n\nturn",)))
    assert episode["completion"] == "click(1)\n\ntwo\n\nparagraphs\n\n"
    assert episode["turns"] == [8, 15, 0]
    assert "turns" not in answer
