"""The same without YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from levelhead import Recipe, train
from levelhead.api import Result, evaluate
from levelhead.errors import InputError, RewardError
from levelhead.preflight.run import dry_run, dry_run_text

TINY = {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate_size": 64, "context": 128}
ROWS = [{"prompt": f"Count to {n}."} for n in range(1, 21)]


def recipe(**grpo: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "check": False,
            "model": {"preset": "tiny", "tiny": TINY},
            "tasks": [{"kind": "function", "eval_fraction": 0.5}],
            "grpo": {"steps": 2, "batch_size": 8, "group_size": 4, "sampling": {"max_new_tokens": 8}, **grpo},
            "eval": {"final_items": 4, "sampling": {"max_new_tokens": 8}},
        }
    )


def shorter(completions: list[Any], **_: Any) -> list[float]:
    return [-len(str(text)) / 100 for text in completions]


def test_rows_and_functions_from_python_train_and_leave_a_whole_run(tmp_path: Path) -> None:
    result = train(recipe(), data=ROWS, rewards=shorter, out=tmp_path / "run")
    assert result.outcome == "done"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(summary["tasks"]["function"]) == {"start", "grpo"}
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000


def test_the_same_cell_can_be_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    short = recipe(steps=1)
    folders = [train(short, data=ROWS, rewards=shorter).folder for _ in range(3)]
    assert [folder.name for folder in folders] == [short.name, f"{short.name}-2", f"{short.name}-3"]
    assert f"this one goes to {folders[2]}" in capsys.readouterr().err
    with pytest.raises(InputError, match="already holds a run"):
        train(short, data=ROWS, rewards=shorter, out=folders[0])


def test_model_and_tokenizer_that_are_already_loaded_are_trained_in_place(tmp_path: Path) -> None:
    first = train(recipe(), data=ROWS, rewards=shorter, out=tmp_path / "a")
    before = {name: p.detach().clone() for name, p in first.model.named_parameters()}
    again = train(
        recipe(optimizer={"learning_rate": 1e-2}),
        data=ROWS,
        rewards=shorter,
        out=tmp_path / "b",
        model=first.model,
        tokenizer=first.tokenizer,
    )
    assert again.model is first.model
    assert any(not p.equal(before[name]) for name, p in again.model.named_parameters())


def test_reward_that_raises_stops_the_run_and_is_named(tmp_path: Path) -> None:
    def broken(completions: list[Any], **_: Any) -> list[float]:
        raise KeyError("answer")

    with pytest.raises(RewardError, match="broken"):
        train(recipe(), data=ROWS, rewards=broken, out=tmp_path / "run")


def test_used_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InputError, match="--resume"):
        train(recipe(), data=ROWS, rewards=shorter, out=tmp_path)


def test_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="together"):
        train(recipe(), data=ROWS, rewards=shorter, out=tmp_path / "run", model=object())


def test_dry_run_of_a_pretrained_model_needs_its_config_and_no_weights(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    from levelhead.text.tiny import train_tokenizer

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_key_value_heads=8, vocab_size=128256
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    train_tokenizer(["Some text to learn from."], 300).save_pretrained(tmp_path)
    shipped = Path(__file__).parents[1] / "recipes" / "dual-llama3-8b.yaml"
    from levelhead.recipe import load

    overrides = [f"model.name={tmp_path}", "tasks.0.path=null", "tasks.1.path=null"]
    facts = dry_run(load(shipped, overrides))
    assert facts["parameters"] > 8e9
    assert 0 < facts["trained_parameters"] < 1e8
    assert f"{facts['parameters']:,} parameters, {facts['trained_parameters']:,} of them trained" in dry_run_text(facts)
    assert "{" not in dry_run_text(facts) + dry_run_text(facts, "zh"), "sentences, no dicts"


def test_a_result_is_a_short_line_and_in_a_notebook_a_table(tmp_path: Path) -> None:
    stages = {"start": {"score": 0.25, "n": 8}, "grpo": {"score": 0.5, "n": 8}}
    verdict = {"sums": {"outcome": "improved", "text": "it learnt <b>sums</b>"}}
    result = Result("done", tmp_path, {"tasks": {"sums": stages}, "verdict": verdict}, object(), object())
    assert repr(result) == f"Result(done, {tmp_path}; sums: it learnt <b>sums</b>)"
    html = result._repr_html_()
    assert "<td>grpo</td><td>+0.500" in html
    assert "it learnt &lt;b&gt;sums&lt;/b&gt;" in html


@pytest.mark.parametrize("checkpoint", ["best", "step-000002"])
def test_an_evaluation_finds_the_best_constant_answers_of_its_run(tmp_path: Path, checkpoint: str) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def r(completions, **_): return [float(sum(map(ord, str(c))) % 7) for c in completions]\n")
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    keys = recipe().model_dump(exclude_unset=True)
    keys["tasks"] = [{"kind": "function", "eval_fraction": 0.5, "path": str(data), "rewards": [f"{rewards}:r"]}]
    whole = Recipe.model_validate(keys)
    summary = train(whole, out=tmp_path / "run").summary
    scored = evaluate(whole, tmp_path / "run" / "checkpoints" / checkpoint)
    own = summary["tasks"]["function"]["grpo"]["constant"]
    for results in scored.values():
        assert results["function"].to_json()["constant"] == own
