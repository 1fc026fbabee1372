"""A run as a model that others load: merged weights to the bit, a card with what is known, and the hub."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from typer.testing import CliRunner

from levelhead import train
from levelhead.cli import main as cli
from levelhead.errors import InputError
from levelhead.export import write
from levelhead.export.card import card
from levelhead.export.write import export
from levelhead.policy.load import load_checkpoint
from levelhead.recipe import load
from small_run import recipe

CHAT = [{"role": "user", "content": "question 3?"}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of whole weights, and one of an adapter on it."""
    folder = tmp_path_factory.mktemp("runs")
    short = {"sft__steps": 2, "grpo__steps": 1, "eval__final_items": 4}
    whole = train(recipe(folder, **short), out=folder / "whole").folder
    base = export(whole, folder / "base").folder
    model = {"name": str(base), "dtype": "float32", "lora": {"r": 4}}
    adapter = train({**recipe(folder, **short), "model": model}, out=folder / "adapter").folder
    return {"whole": whole, "adapter": adapter, "base": base}


def logits(model: Any, tokenizer: Any) -> torch.Tensor:
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        values: torch.Tensor = model(**ids).logits
    return values


def test_whole_weights_load_in_transformers_as_they_were_trained(runs: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(runs["base"])
    policy = load_checkpoint(load(runs["whole"] / "recipe.yaml").model, runs["whole"] / "checkpoints" / "best")
    assert all(torch.equal(weight, policy.model.state_dict()[name]) for name, weight in model.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(runs["base"])
    assert tokenizer.chat_template == policy.codec.tokenizer.chat_template
    stops = GenerationConfig.from_pretrained(runs["base"]).eos_token_id
    assert set([stops] if isinstance(stops, int) else stops) == set(policy.codec.stop_ids)


def test_a_merged_adapter_says_what_the_adapter_says(runs: dict[str, Path], tmp_path: Path) -> None:
    merged = export(runs["adapter"], tmp_path / "merged", merge=True, checkpoint="step-000003")
    alone = export(runs["adapter"], tmp_path / "alone", checkpoint="step-000003")
    assert (merged.merged, merged.adapter, alone.merged, alone.adapter) == (True, False, False, True)
    assert not (merged.folder / "adapter_config.json").exists()
    tokenizer = AutoTokenizer.from_pretrained(merged.folder)
    ours = logits(AutoModelForCausalLM.from_pretrained(merged.folder), tokenizer)
    theirs = logits(AutoPeftModelForCausalLM.from_pretrained(alone.folder), tokenizer)
    base = logits(AutoModelForCausalLM.from_pretrained(runs["base"]), tokenizer)
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert not torch.allclose(ours, base, atol=1e-4)


@pytest.mark.parametrize("ends", [["lm_head"], ["embed_tokens", "q_proj"]])
def test_a_merged_adapter_on_tied_embeddings_says_what_the_checkpoint_says(
    ends: list[str], runs: dict[str, Path], tmp_path: Path
) -> None:
    model = {"name": str(runs["base"]), "dtype": "float32", "lora": {"r": 4, "target_modules": ends}}
    short = {"sft__steps": 8, "sft__optimizer__learning_rate": 0.03, "grpo__steps": 1, "eval__final_items": 4}
    run = train({**recipe(tmp_path, **short), "model": model}, out=tmp_path / "run", check=False).folder
    last = "step-000009"
    policy = load_checkpoint(load(run / "recipe.yaml").model, run / "checkpoints" / last)
    for merge in (True, False):
        whole = export(run, tmp_path / f"merge {merge}", merge=merge, checkpoint=last).folder
        tokenizer = AutoTokenizer.from_pretrained(whole)
        theirs = (AutoModelForCausalLM if merge else AutoPeftModelForCausalLM).from_pretrained(whole)
        assert torch.allclose(logits(theirs, tokenizer), logits(policy.model, tokenizer), atol=1e-4)
    assert not torch.allclose(
        logits(policy.model, tokenizer), logits(AutoModelForCausalLM.from_pretrained(runs["base"]), tokenizer), atol=0.1
    )


def test_a_run_over_an_exported_adapter_goes_on_from_it_and_one_over_it_merged_is_exported_whole(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    first = export(runs["adapter"], tmp_path / "first").folder
    for rank in (4, 2):
        model = {"name": str(first), "dtype": "float32", "lora": {"r": rank}}
        short = {"sft__steps": 1, "grpo__steps": 1, "eval__final_items": 4}
        run = train({**recipe(tmp_path, **short), "model": model}, out=tmp_path / f"run {rank}", check=False).folder
        section, last = load(run / "recipe.yaml").model, "step-000002"
        policy = load_checkpoint(section, run / "checkpoints" / last)
        whole = export(run, tmp_path / f"whole {rank}", merge=True, checkpoint=last).folder
        tokenizer = AutoTokenizer.from_pretrained(whole)
        ours = logits(policy.model, tokenizer)
        assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(whole), tokenizer), ours, atol=1e-4)
        if rank == 4:
            alone = export(run, tmp_path / "alone", checkpoint=last).folder
            assert torch.allclose(logits(AutoPeftModelForCausalLM.from_pretrained(alone), tokenizer), ours, atol=1e-4)
        else:
            with pytest.raises(InputError, match="add --merge"):
                export(run, tmp_path / "refused", checkpoint=last)


def test_nothing_is_said_beside_what_the_command_says(
    runs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    export(runs["adapter"], tmp_path / "merged", merge=True)
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_whoever_may_read_plain_files_may_read_the_model(umask: int, runs: dict[str, Path], tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        folder = export(runs["adapter"], tmp_path / "out", merge=True).folder
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_weights_have_the_type_that_is_asked_for(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = export(runs["whole"], tmp_path / "half", dtype="bfloat16").folder
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16


def test_the_card_says_in_which_precision_the_scores_were_computed(runs: dict[str, Path], tmp_path: Path) -> None:
    scored = "Scores were computed with products in float32; the weights here are "
    assert scored + "float32." in (runs["base"] / "README.md").read_text(encoding="utf-8")
    half = export(runs["whole"], tmp_path / "half", dtype="bfloat16")
    assert half.precision.startswith(scored + "bfloat16.")
    assert half.precision in (half.folder / "README.md").read_text(encoding="utf-8")


def test_an_adapter_is_not_merged_into_weights_that_round_it_away(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "HIDDEN", 2.0)
    run = tmp_path / "run"
    shutil.copytree(runs["adapter"], run)
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("dtype: float32", "dtype: bfloat16"))
    own = export(run, tmp_path / "own", merge=True)
    assert "the weights here are float32. `levelhead eval`" in own.precision
    assert "bfloat16 shows what the adapter changes in the merged weights with cosine" in own.precision
    assert AutoModelForCausalLM.from_pretrained(own.folder, dtype="auto").dtype == torch.float32
    asked = export(run, tmp_path / "asked", merge=True, dtype="bfloat16")
    assert asked.precision.endswith("this is not the policy that was scored.")


def test_the_card_holds_scores_baseline_findings_and_the_recipe(runs: dict[str, Path]) -> None:
    text = (runs["base"] / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---")[1])
    assert (front["library_name"], front["tags"]) == ("transformers", ["levelhead", "sft", "grpo"])
    summary = json.loads((runs["whole"] / "summary.json").read_text(encoding="utf-8"))
    for result in summary["tasks"]["one"].values():
        assert f"{result['score']:+.3f}" in text
    for part in ("### one", "| prompts | start | sft | grpo |", "The best constant answer", "## Findings", "seed: 3"):
        assert part in text
    assert (runs["base"] / "levelhead_recipe.yaml").read_text() == (runs["whole"] / "recipe.yaml").read_text()


def test_strata_stand_in_the_card_and_what_a_policy_wrote_means_nothing_in_it(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("recipe.yaml", "metrics.jsonl"):
        (folder / name).write_bytes((runs["whole"] / name).read_bytes())
    hostile = "<img src=x> [a](b)\n# heading | `code`"
    stage = {"score": 0.5, "se": 0.1, "n": 9, "strata": {"level=hard": {"score": 0.25, "se": 0.1}}}
    tasks = {"one": {"grpo": {**stage, "constant": {"answer": hostile, "score": 0.1, "se": 0.0}}}}
    (folder / "summary.json").write_text(json.dumps({"tasks": tasks}), encoding="utf-8")
    text = card(folder, "best", "grpo, step 1", None, adapter=False, precision="")
    assert "| level=hard | +0.250 ± 0.100 |" in text
    assert "<img" not in text.replace("\\<img", "")
    assert "\n# heading" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: no run here"),
        (["RUN", "--checkpoint", "step-999999"], "step-999999: "),
        (["RUN", "--checkpoint", "../.."], "has none of that name; there are: best, step-"),
        (["RUN", "--dtype", "int4"], "--dtype int4: give one of"),
        (["RUN", "--private"], "--private is for --push"),
        (["RUN", "--out", "FULL"], "is there already"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    arguments: list[str], said: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    names = {"RUN": str(runs["whole"]), "FULL": str(runs["base"])}
    given = [names.get(word, word) for word in arguments]
    out = [] if "--out" in given else ["--out", str(tmp_path / "out")]
    error = CliRunner().invoke(cli.app, ["export", *given, *out]).exception
    assert isinstance(error, InputError)
    assert said in str(error)
    assert not list(tmp_path.iterdir())


class Hub:
    """A stand-in for the hub's client."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: list[str] = []

    def create_repo(self, name: str, **options: Any) -> Any:
        self.calls.append(("create", {"name": name, **options}))
        return huggingface_hub.RepoUrl(f"https://huggingface.co/me/{name}")

    def upload_folder(self, *, repo_id: str, folder_path: str, revision: str | None, commit_message: str) -> None:
        self.calls.append(("upload", {"repo_id": repo_id}))
        self.files = sorted(path.name for path in Path(folder_path).iterdir())


def test_a_push_makes_the_repository_and_uploads_the_folder(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token: hub)
    arguments = [
        "export",
        str(runs["whole"]),
        "--out",
        str(tmp_path / "out"),
        "--push",
        "letters",
        "--private",
        "--json",
    ]
    told = json.loads(CliRunner().invoke(cli.app, arguments).stdout)
    assert told["url"] == "https://huggingface.co/me/letters"
    assert hub.calls == [
        ("create", {"name": "letters", "private": True, "exist_ok": True}),
        ("upload", {"repo_id": "me/letters"}),
    ]
    assert {"README.md", "model.safetensors", "tokenizer.json", "generation_config.json"} <= set(hub.files)


def test_a_hub_that_refuses_leaves_the_export_and_says_how_to_go_on(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("401 Unauthorized")

    hub = Hub()
    monkeypatch.setattr(hub, "create_repo", refuse)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token: hub)
    arguments = ["export", str(runs["whole"]), "--out", str(tmp_path / "out"), "--push", "letters"]
    error = CliRunner().invoke(cli.app, arguments).exception
    assert "--push letters: 401 Unauthorized" in str(error)
    assert "hf upload letters" in str(error)
    assert (tmp_path / "out" / "model.safetensors").is_file()
