"""A real pretrained chat model on every path: two steps each, nothing is said where nothing is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import levelhead
from levelhead.api import Result
from levelhead.policy.backends.cpu import attention
from levelhead.policy.load import load_codec, load_policy
from levelhead.recipe.model import Model

pytestmark = [pytest.mark.real, pytest.mark.slow]

RECIPES = Path(__file__).parents[2] / "recipes" / "real"
LORA = {"r": 8, "alpha": 16}
SAMPLING = {"temperature": 0.7, "max_new_tokens": 10}
PATHS: dict[str, dict[str, Any]] = {
    "full, float32, one step ahead": {"dtype": "float32", "async": 1},
    "lora, bf16": {"dtype": "bfloat16", "lora": LORA},
    "lora, float32": {"dtype": "float32", "lora": LORA},  # the last one: the test behind it goes on with it
}
NOTES = {"large-update"}
"""What may be said of two steps: a step that the trust region has shortened."""


def recipe(folder: Path, *, ahead: int = 0, **model: Any) -> dict[str, Any]:
    """Short sums by the shipped reward."""
    return {
        "name": "real",
        "check": False,
        "threads": 1,
        "model": {"name": str(folder), **model},
        "tasks": [
            {
                "kind": "function",
                "path": str(RECIPES / "sums.jsonl"),
                "rewards": [f"{RECIPES / 'sums.py'}:exact"],
                "strata": ["kind"],
                "limit": 200,
            }
        ],
        "grpo": {
            "steps": 2,
            "batch_size": 8,
            "group_size": 4,
            "async": ahead,
            "sampling": SAMPLING,
            "optimizer": {"learning_rate": 1e-4 if "lora" in model else 1e-5},
        },
        "checkpoint": {"every": 1 if "lora" in model else 0},
        "eval": {
            "every": 0,
            "items": 4,
            "final_items": 4,
            "constant": False,
            "sampling": SAMPLING,
        },
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def done(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """The run of a path, of which the last one is kept."""

    @lru_cache(maxsize=1)
    def run(name: str) -> Result:
        section = dict(PATHS[name])
        ahead = section.pop("async", 0)
        return levelhead.train(recipe(real_model, ahead=ahead, **section), out=tmp_path_factory.mktemp("path") / "run")

    return run


@pytest.mark.parametrize("name", PATHS)
def test_two_steps_are_made_and_nothing_is_said(name: str, done: Callable[[str], Result]) -> None:
    result = done(name)
    assert result.outcome == "done"
    events = lines(result.folder / "events.jsonl")
    assert [event for event in events if event["severity"] != "info" and event["code"] not in NOTES] == []
    steps = [row for row in lines(result.folder / "metrics.jsonl") if row["stage"] == "grpo"]
    assert len(steps) == 2
    assert all(row["completions/mean_length"] > 1 for row in steps)
    trained = [p for p in result.model.parameters() if p.requires_grad]
    assert all(torch.isfinite(p).all() for p in trained)


def test_a_run_that_goes_on_ends_with_the_weights_of_one_that_was_not_interrupted(
    real_model: Path, done: Callable[[str], Result], tmp_path: Path
) -> None:
    name = "lora, float32"
    whole = done(name)
    shutil.copytree(whole.folder, tmp_path / "run")
    again = recipe(real_model, **PATHS[name])
    resumed = levelhead.train(again, out=tmp_path / "run", resume=True, resume_from="step-000001")
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    before, after = (run.joinpath("metrics.jsonl").read_text().splitlines() for run in (whole.folder, resumed.folder))
    first = next(i for i, row in enumerate(before) if json.loads(row).get("stage") == "grpo")
    assert after[: first + 1] == before[: first + 1], "the first step was not made again: its seconds are the same"
    assert after[-1] != before[-1], "the second one was"


def test_prompts_are_of_the_models_own_template_and_answers_end_with_its_stop_token(real_model: Path) -> None:
    codec = load_codec(Model(name=str(real_model)))
    messages = ({"role": "user", "content": "What is 2 + 2?"},)
    text = str(codec.tokenizer.decode(list(codec.render(messages))))
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    completion = codec.demonstration(messages, "4").completion_ids
    assert codec.tokenizer.decode(list(completion)) == "4<|im_end|>"
    assert codec.decode(completion) == "4"


@pytest.mark.parametrize("lora", [None, LORA])
def test_in_bf16_the_model_runs_over_prefix_trees(real_model: Path, lora: dict[str, int] | None) -> None:
    policy = load_policy(Model.model_validate({"name": str(real_model), "dtype": "bfloat16", "lora": lora}))
    assert policy.backend.name == ("cpu" if policy.device.type == "cpu" else "flex")


def test_in_bf16_wrong_attention_is_still_told_from_rounding(real_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.attend
    monkeypatch.setattr(attention, "attend", lambda q, k, v, pieces, scale: right(q, k, v, pieces, 1.5 * scale))
    section = {"name": str(real_model), "dtype": "bfloat16", "lora": LORA, "device": "cpu"}
    assert load_policy(Model.model_validate(section)).backend.name == "sdpa"
