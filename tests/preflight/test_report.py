"""What the preflight says of good and of broken recipes, and how a run heeds it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from levelhead.api import train
from levelhead.cli.main import app
from levelhead.policy.policy import Policy
from levelhead.preflight import Outcome, PreflightError, Report, preflight
from levelhead.text import fingerprint
from levelhead.text.codec import Codec
from preflight_setup import ROWS, TEXT, closeness, recipe_of, setup_of
from small_run import metrics
from text.families import FAMILIES, codec_of


def by_name(report: Report) -> dict[str, Outcome]:
    return {check.name: check for check in report.checks}


def constant(completions: Sequence[Any], **_: Any) -> list[float]:
    return [1.0 for _ in completions]


def upside_down(**columns: Any) -> list[float]:
    return [-value for value in closeness(**columns)]


def short_list(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0]


def not_finite(completions: Sequence[Any], **_: Any) -> list[float]:
    return [math.nan for _ in completions]


def raises(completions: Sequence[Any], **_: Any) -> list[float]:
    raise KeyError("label")


@pytest.mark.parametrize(
    ("reward", "check"),
    [
        (constant, "rewards/order/echo"),
        (upside_down, "rewards/order/echo"),
        (short_list, "rewards/finite"),
        (not_finite, "rewards/finite"),
        (raises, "rewards/finite"),
    ],
)
def test_broken_reward_of_the_user_fails(reward: Any, check: str) -> None:
    report = preflight(setup_of(reward=reward), families=["rewards"])
    assert by_name(report)[check].status == "fail"
    if check == "rewards/finite":
        assert reward.__name__ in by_name(report)[check].message


def test_bounds_that_no_perfect_answer_fits_fail() -> None:
    report = by_name(preflight(setup_of("grpo.sampling.max_new_tokens=3"), families=["sampling"]))
    assert report["sampling/max-length"].status == "fail"
    report = by_name(preflight(setup_of("grpo.sampling.min_new_tokens=20"), families=["sampling"]))
    assert report["sampling/min-length"].status == "fail"


def test_greedy_rollouts_fail_and_two_rollouts_are_named() -> None:
    setup = setup_of("grpo.sampling.temperature=0", "grpo.group_size=2")
    report = by_name(preflight(setup, families=["sampling", "rewards"]))
    assert report["sampling/temperature"].status == "fail"
    assert report["rewards/group-size"].status == "warn"
    assert "plus and minus the same number" in report["rewards/group-size"].message


@pytest.mark.parametrize(
    "settings",
    [
        ("model.lora.r=4", "model.lora.dropout=0.1", "grpo.kl.coef=0.05"),
        ("model.dtype=bfloat16", "grpo.kl.coef=0.05"),
        ("model.gradient_checkpointing=true", "grpo.dynamic_sampling=2", "grpo.curriculum={kind: learnability}"),
        ("model.attention=eager", "grpo.sampling.temperature=0.7", "grpo.sampling.presence_penalty=0.5"),
        ("sft=null", "grpo.updates_per_batch=2", "grpo.epochs=2", "grpo.advantage.kind=rloo"),
        ("grpo=null",),
        (
            "sft.batch_size=16",
            "sft.tokens_per_microbatch=64",
            "grpo.tokens_per_microbatch=64",
            "grpo.kl.coef=0.05",
            "grpo.kl.where=reward",
            "grpo.kl.estimator=k1",
        ),
        ("grpo.loss.kind=gspo", "grpo.loss.aggregation=sequence_mean", "grpo.kl.coef=0.05", "grpo.kl.gradient=k2"),
        ("grpo.advantage.kind=gdpo", "grpo.merge.kind=cagrad", "grpo.mask_truncated=true"),
        ("grpo.advantage.kind=dr_grpo", "grpo.loss.aggregation=fixed_length", "grpo.entropy.coef=0.01"),
        ("grpo.loss.top_entropy=0.2", "grpo.loss.importance=token_truncate", "grpo.sampling.top_p=0.9"),
    ],
    ids=lambda settings: settings[0],
)
def test_sound_recipe_passes_whatever_it_asks_for(settings: tuple[str, ...]) -> None:
    report = preflight(setup_of(*settings))
    assert not report.failures, [(check.name, check.message) for check in report.failures]


def test_a_tokenizer_that_is_not_the_same_once_saved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_class(self: Codec, folder: Path) -> None:
        self.tokenizer.save_pretrained(str(folder))
        fingerprint.write(self, Path(folder))
        path = Path(folder) / "tokenizer.json"
        saved = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(saved | {"normalizer": {"type": "NFC"}}), encoding="utf-8")

    setup = setup_of()
    assert by_name(preflight(setup, families=["tokens"]))["tokens/round-trip"].status == "pass"
    monkeypatch.setattr(Codec, "save", slow_class)
    check = by_name(preflight(setup, families=["tokens"]))["tokens/round-trip"]
    assert check.status == "fail"
    assert "the probe 'cafe\u0301" in check.message
    assert "model.tokenizer" in check.fix


def test_labels_that_are_equally_likely_are_not_called_without_effect() -> None:
    setup = setup_of()
    with torch.no_grad():
        head = setup.policy.model.get_output_embeddings().weight
        head[1::2] = head[0::2]
    report = preflight(setup)
    assert "loss/completion-only" not in {check.name for check in report.failures}


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_of_the_usual_families_pass(family: str) -> None:
    from dataclasses import replace

    from transformers import Qwen2Config, Qwen2ForCausalLM

    setup = setup_of("tasks.1.kind=math", "sft.steps=1")
    codec = codec_of(family)
    config = Qwen2Config(
        vocab_size=codec.vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    setup = replace(setup, policy=Policy(Qwen2ForCausalLM(config).eval(), codec))
    failures = preflight(setup, families=["tokens", "stops"]).failures
    assert not failures


def test_failed_check_keeps_a_run_from_starting_and_leaves_the_reason(tmp_path: Path) -> None:
    recipe = recipe_of("tasks.1.items=12")
    with pytest.raises(PreflightError, match="--no-check"):
        train(recipe, data=list(ROWS), rewards=constant, out=tmp_path / "run")
    checks = json.loads((tmp_path / "run" / "check.json").read_text(encoding="utf-8"))
    assert {tuple(check) for check in checks} == {("name", "status", "id", "fields", "message", "fix", "evidence")}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["check.json"]


def test_run_is_the_same_with_the_preflight_and_without_it(tmp_path: Path) -> None:
    recipe = recipe_of("grpo.kl.coef=0.05", "grpo.entropy.coef=0.01", "eval.items=2", "eval.final_items=2")
    runs = {}
    for check in (True, False):
        out = tmp_path / str(check)
        result = train(recipe, data=list(ROWS), rewards=closeness, out=out, check=check)
        runs[check] = (metrics(out), {name: p.detach().clone() for name, p in result.model.named_parameters()})
        assert (out / "check.json").exists() == check
    assert runs[True][0] == runs[False][0]
    assert all(torch.equal(p, runs[False][1][name]) for name, p in runs[True][1].items())


def test_command_exits_1_on_failure_0_otherwise_and_prints_one_document(tmp_path: Path) -> None:
    data = yaml.safe_load(TEXT)
    data["tasks"] = [data["tasks"][1]]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    good = CliRunner().invoke(app, ["check", str(path), "--json"])
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["status"] in ("pass", "warn")
    bad = CliRunner().invoke(app, ["check", str(path), "--set", "grpo.sampling.max_new_tokens=2"])
    assert bad.exit_code == 1
    assert "fix:" in bad.stdout


@pytest.mark.parametrize(
    ("settings", "status", "message"),
    [
        ((), "pass", "KL 0 to 0 by task, entropy 0"),
        (("tasks.0.kl=5",), "warn", "tasks.0.kl 5"),
        (("tasks.1.kl=0.02", "grpo.kl.coef=0.01"), "pass", "KL 0.01 to 0.02 by task"),
        # What no task starts from is not spoken of.
        (("tasks.0.kl=0.1", "tasks.1.kl=0.1", "grpo.kl.coef=3"), "pass", "KL 0.1 to 0.1 by task, entropy 0"),
        (
            ("tasks.0.kl=0.1", "grpo.kl.coef=3", "grpo.entropy.coef=0.5"),
            "warn",
            "grpo.entropy.coef 0.5 and grpo.kl.coef 3",
        ),
    ],
)
def test_advice_looks_at_the_coefficients_that_tasks_really_start_from(
    settings: tuple[str, ...], status: str, message: str
) -> None:
    checks = preflight(setup_of(*settings), families=["advice/coefficients"]).checks
    assert {check.status for check in checks} == {status}
    for part in message.split(" and "):
        (check,) = [check for check in checks if part in check.message]
        assert not check.fix or part.split()[0] in check.fix
