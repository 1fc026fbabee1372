"""Settings that cannot go together are refused at validation: every pair of them that is accepted trains for a step."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.objective.advantages import ADVANTAGES
from levelhead.objective.aggregation import AGGREGATORS
from levelhead.objective.losses import LOSSES
from levelhead.objective.shaping import SHAPERS
from levelhead.objective.task_weights import TASK_WEIGHTS
from levelhead.recipe import Recipe, validate
from night import cases
from small_run import put, recipe

SMALL = {
    "sft": None,
    "grpo__steps": 1,
    "grpo__group_size": 4,
    "grpo__batch_size": 16,
    "eval__constant": False,
    "grpo__audit__first": 0,
}
NEEDED: dict[str, dict[str, Any]] = {
    "pass_at_k": {"k": 2},
    "pkpo": {"k": 2},
    "overlong": {"cache": 3},
    "per_token": {"coef": 0.01},
    "constraint": {"least": {"one": 0.1}},
}
"""Keys that a kind cannot do without."""
DATA = ("workflow_aware",)
"""Kinds that need features which these rewards do not report; the data tell, and not the recipe."""


def kinds(variants: Iterable[str]) -> list[dict[str, Any]]:
    return [{"kind": name, **NEEDED.get(name, {})} for name in variants if name not in DATA]


AXES: dict[str, list[Any]] = {
    "grpo.loss": kinds(LOSSES),
    "grpo.advantage": kinds(ADVANTAGES),
    "grpo.loss.aggregation": ["token_mean", "sequence_mean", "fixed_length"],
    "grpo.loss.importance": [None, "token_truncate", "token_mask", "sequence_truncate", "geometric_mask"],
    "grpo.loss.top_entropy": [None, 0.5],
    "grpo.kl": [
        {"coef": 0.0},
        {"coef": 0.1, "estimator": "k1"},
        {"coef": 0.1, "estimator": "k2", "gradient": "k2"},
        {"coef": 0.1, "gradient": "importance"},
        {"coef": 0.1, "estimator": "k1", "where": "reward"},
    ],
    "grpo.merge": [*kinds(AGGREGATORS), {"kind": "sum", "monitor_every": 1, "switch_after": 1, "c": 0.2}],
    "grpo.merge.memory": ["full", "low"],
    "grpo.merge.scale": ["sum", "own"],
    "grpo.task_weights": kinds(TASK_WEIGHTS),
    "grpo.curriculum": ["weights", "learnability"],
    "grpo.dynamic_sampling": [0, 2],
    "grpo.async": [0, 1, 2],
    "grpo.updates_per_batch": [1, 2],
    "grpo.epochs": [1, 2],
    "grpo.mask_truncated": [False, True],
    "grpo.audit": [{"first": 0}, {"first": 2}],
    "grpo.entropy": [{"coef": 0.0}, {"coef": 0.05}],
    "tasks.0.shaping": [{}, {"zscore": {}}, {"clip": [-0.1, 0.5]}, *({"length": one} for one in kinds(SHAPERS))],
    "tasks.0.kl": [0.0, 0.1],
    "model.lora": [None, {"r": 2, "alpha": 4}],
    "guard.policy": ["protect", "observe", "off"],
    "grpo.sampling": [
        {"max_new_tokens": 6, **more}
        for more in ({}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"repetition_penalty": 1.2})
    ],
}
NAMES = list(AXES)
Place = tuple[int, int]
"""An axis and one of its values."""


def read(base: dict[str, Any], places: Iterable[Place]) -> Recipe:
    """A recipe with some settings, the sections before the keys in them.

    Raises:
        InputError: They cannot go together.
    """
    given = copy.deepcopy(base)
    for axis, value in sorted(places, key=lambda place: NAMES[place[0]].count(".")):
        node, *path = NAMES[axis].split(".")
        if AXES[NAMES[axis]][value] is not None:
            put(given, [node, *path], copy.deepcopy(AXES[NAMES[axis]][value]))
    return validate(given)


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    given = recipe(tmp_path, **SMALL)
    for task in given["tasks"]:
        task["reward_range"] = [-1, 1]
    return given


def pairs_of(row: Sequence[Place]) -> set[tuple[Place, Place]]:
    return set(itertools.combinations(row, 2))


def sorted_out(base: dict[str, Any]) -> tuple[set[tuple[Place, Place]], dict[tuple[Place, Place], str]]:
    """All pairs of settings: those that are accepted, and those that are refused, with the words."""
    accepted, refused = set(), {}
    for one, other in itertools.combinations(range(len(NAMES)), 2):
        for pair in itertools.product(
            ((one, value) for value in range(len(AXES[NAMES[one]]))),
            ((other, value) for value in range(len(AXES[NAMES[other]]))),
        ):
            try:
                read(base, pair)
                accepted.add(pair)
            except InputError as error:
                refused[pair] = str(error)
    return accepted, refused


def rows(base: dict[str, Any], wanted: set[tuple[Place, Place]]) -> Iterator[list[Place]]:
    """Settings that hold all wanted pairs between them, each as many new ones as a greedy search finds.

    A pair of which the search finds no whole recipe that is accepted stands alone.
    """
    rng, left = random.Random(0), set(wanted)
    while left:
        first, second = rng.choice(sorted(left))
        best: list[Place] = [first, second]
        for _ in range(30):
            row = [rng.randrange(len(AXES[name])) for name in NAMES]
            row[first[0]], row[second[0]] = first[1], second[1]
            for axis in rng.sample(range(len(NAMES)), len(NAMES)):
                if axis in (first[0], second[0]):
                    continue
                gains = []
                for value in range(len(AXES[NAMES[axis]])):
                    row[axis] = value
                    new = sum(
                        tuple(sorted(((axis, value), (other, row[other])))) in left
                        for other in range(len(NAMES))
                        if other != axis
                    )
                    gains.append((new, rng.random(), value))
                row[axis] = max(gains)[2]
            try:
                read(base, enumerate(row))
            except InputError:
                continue
            if len(pairs_of([*enumerate(row)]) & left) > len(pairs_of(best) & left):
                best = [*enumerate(row)]
        left -= pairs_of(best)
        yield best


ROWS = cases(8, 100_000)
"""Runs of one step; the first ones hold the most pairs.  By night all of them are made."""


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_pair_of_settings_trains_for_a_step_or_is_refused_before(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    accepted, refused = sorted_out(base)
    assert len(accepted) > 30 * len(refused)
    assert all("\n" not in words for words in refused.values())
    for number, row in enumerate(itertools.islice(rows(base, accepted), ROWS)):
        settings = {NAMES[axis]: AXES[NAMES[axis]][value] for axis, value in row}
        outcome = train(read(base, row), out=tmp_path / f"run-{number}").outcome
        assert outcome == "done", settings


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"loss": {"kind": "gspo"}, "advantage": {"kind": "gtpo"}}, "takes one advantage a sequence"),
        ({"loss": {"kind": "gmpo"}, "advantage": {"kind": "gtpo"}}, "takes one advantage a sequence"),
        ({"loss": {"kind": "gspo"}, "advantage": {"kind": "return_to_go"}}, "takes one advantage a sequence"),
        ({"group_size": 4, "advantage": {"kind": "pass_at_k", "k": 8}}, "needs a group_size of at least 9, got 4"),
        ({"group_size": 4, "advantage": {"kind": "pkpo", "k": 5}}, "needs a group_size of at least 5, got 4"),
        ({"loss": {"kind": "ppo_clip", "fixed_length": 64}}, "needs loss.aggregation: fixed_length"),
        ({"loss": {"kind": "reinforce"}, "async": 1}, "has no ratio to correct for it"),
        (
            {"advantage": {"kind": "gdpo"}, "kl": {"coef": 0.1, "estimator": "k1", "where": "reward"}},
            "charges the total reward, which advantage.kind: gdpo does not look at",
        ),
    ],
)
def test_pairs_that_cannot_go_together_are_refused(base: dict[str, Any], keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        validate({**base, "grpo": {**base["grpo"], **keys}})


def test_a_shaped_task_needs_an_estimator_that_reads_the_total(base: dict[str, Any]) -> None:
    base["grpo"]["advantage"] = {"kind": "gdpo"}
    assert validate(base).grpo is not None
    base["tasks"][1]["shaping"] = {"clip": [0, 1]}
    with pytest.raises(
        InputError, match=r"tasks\.1\.shaping changes the total reward, which grpo\.advantage\.kind: gdpo"
    ):
        validate(base)
