"""What loads is what was meant: an adapter that ``model.name`` names is continued, merged or refused, never dropped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PeftConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from levelhead.errors import InputError
from levelhead.policy.load import load_checkpoint, load_policy, load_shape
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model
from small_run import TEXTS, TINY

IDS = torch.tensor([[5, 9, 3, 7, 11, 2]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of its own, whole."""
    folder = tmp_path_factory.mktemp("models") / "base"
    load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS).save(folder)
    return folder


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        values: Tensor = model.eval()(IDS).logits
    return values


def tuned(base: Path, folder: Path, config: PeftConfig) -> Tensor:
    """Save an adapter with random weights as PEFT does; returns what the model with it says."""
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    return logits(model)


def lora(**keys: Any) -> LoraConfig:
    return LoraConfig(
        **{"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", **keys}
    )


def loaded(name: Path, **model: Any) -> Policy:
    return load_policy(Model(name=str(name), dtype="float32", **model))


KINDS = {
    "lora": lora(),
    "rslora": lora(use_rslora=True),
    "dora": lora(use_dora=True),
    "one layer": lora(layers_to_transform=[0]),
    "other ranks by module": lora(rank_pattern={"down_proj": 2}),
    "modules_to_save": lora(modules_to_save=["lm_head"]),
    "embedding": lora(target_modules=["embed_tokens", "v_proj"]),
    "biases": lora(bias="lora_only"),
    "head": lora(target_modules=["lm_head"]),
    "tied": lora(target_modules=["embed_tokens"], ensure_weight_tying=True),
    "single tokens": lora(trainable_token_indices=[3, 7]),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"),
    "loha": LoHaConfig(r=3, target_modules=["q_proj"], task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("section", [None, {"r": 3}, {"r": 2}], ids=["whole", "same rank", "other rank"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_begins_with_an_adapter_is_the_tuned_one(
    base: Path, tmp_path: Path, kind: str, section: dict[str, Any] | None
) -> None:
    says = tuned(base, tmp_path / "adapter", KINDS[kind])
    policy = loaded(tmp_path / "adapter", lora=section)
    assert (logits(policy.model) - says).abs().max() < 1e-4
    assert policy.parameters
    assert policy.lora == (section is not None)
    if section is not None:
        assert set(policy.model.peft_config) == {"default"}
        assert policy.model.peft_config["default"].r == section["r"]


@pytest.mark.parametrize("rank", [3, 2])
def test_a_run_that_begins_with_an_adapter_saves_what_it_trained(base: Path, tmp_path: Path, rank: int) -> None:
    tuned(base, tmp_path / "adapter", lora())
    section = Model(name=str(tmp_path / "adapter"), dtype="float32", lora={"r": rank})
    policy = load_policy(section)
    for parameter in policy.parameters:
        torch.nn.init.normal_(parameter.data, std=0.2)
    policy.save(tmp_path / "checkpoint")
    assert torch.equal(logits(load_checkpoint(section, tmp_path / "checkpoint").model), logits(policy.model))
    following = Model(name=str(tmp_path / "checkpoint"), dtype="float32", lora={"r": rank})
    assert (logits(load_policy(following).model) - logits(policy.model)).abs().max() < 1e-4


def test_the_reference_of_a_continued_adapter_is_the_adapter_as_it_began(base: Path, tmp_path: Path) -> None:
    from levelhead.policy.packing import TokenSequence

    tuned(base, tmp_path / "adapter", lora())
    policy = loaded(tmp_path / "adapter", lora={"r": 3})
    policy.keep_reference(trained=False)
    (batch,) = policy.pack([TokenSequence((5, 9, 3), (7, 11, 2))], 64)
    with torch.no_grad():
        assert torch.allclose(policy.reference_logp(batch), policy.score(batch).logp, atol=1e-5)


def test_a_dry_run_sees_the_modules_of_a_continued_adapter(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "adapter", lora())
    shape = load_shape(Model(name=str(tmp_path / "adapter"), dtype="float32", lora={"r": 3}), "cpu", torch.float32)
    policy = loaded(tmp_path / "adapter", lora={"r": 3})
    trained = [{n: p.shape for n, p in m.named_parameters() if p.requires_grad} for m in (shape, policy.model)]
    assert trained[0] == trained[1]


def refused(section: dict[str, Any]) -> str:
    with pytest.raises(InputError) as seen:
        load_policy(Model(dtype="float32", **section))
    return str(seen.value)


PROMPTS = {
    "prompt": PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    "prefix": PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("section", [None, {"r": 3}])
def test_an_adapter_that_is_no_change_of_weights_is_refused_by_kind(
    base: Path, tmp_path: Path, kind: str, section: dict[str, Any] | None
) -> None:
    config = PROMPTS[kind]
    config.base_model_name_or_path = str(base)
    config.save_pretrained(str(tmp_path / "adapter"))
    save_file({"prompt_embeddings": torch.zeros(2, 32)}, tmp_path / "adapter" / "adapter_model.safetensors")
    message = refused({"name": str(tmp_path / "adapter"), "lora": section})
    assert config.peft_type.value in message
    assert str(tmp_path / "adapter") in message


def test_an_adapter_of_another_base_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "adapter", lora())
    wide = {**TINY, "hidden_size": 64, "heads": 2}
    deep = {**TINY, "layers": 1}
    for shape in (wide, deep):
        load_policy(Model(preset="tiny", tiny=shape), texts=TEXTS).save(tmp_path / "other")
        config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(tmp_path / "other")
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
        for section in (None, {"r": 3}):
            assert f"{tmp_path / 'adapter'}: the adapter of another model" in refused(
                {"name": str(tmp_path / "adapter"), "lora": section}
            )
        shutil.rmtree(tmp_path / "other")
    message = refused({"name": str(tmp_path / "adapter"), "lora": {"r": 3}})
    assert "base_model_name_or_path" in message
    assert str(tmp_path / "other") in message


def test_a_checkpoint_of_an_adapter_is_not_loaded_over_another_base_of_its_shape(base: Path, tmp_path: Path) -> None:
    load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS, seed=5).save(tmp_path / "other")
    policy = loaded(base, lora={"r": 3})
    policy.save(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=f"an adapter of {base}; the recipe's model.name is {tmp_path / 'other'}"):
        load_checkpoint(Model(name=str(tmp_path / "other"), lora={"r": 3}), tmp_path / "checkpoint")
    shutil.copytree(base, tmp_path / "copy")
    load_checkpoint(Model(name=str(tmp_path / "copy"), lora={"r": 3}), tmp_path / "checkpoint")


def test_weights_that_an_adapter_lacks_or_has_too_many_are_no_zeros(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "adapter", lora())
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[0]
    for wrong in (
        {k: v for k, v in weights.items() if k != name},
        {**weights, name.replace("layers.0", "layers.7"): weights[name].clone()},
    ):
        save_file(wrong, path)
        assert "of its weights" in refused({"name": str(tmp_path / "adapter"), "lora": {"r": 3}})


def test_whole_weights_that_a_folder_lacks_are_not_random(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    name = next(key for key in weights if "down_proj" in key)
    del weights[name]
    save_file(weights, path, {"format": "pt"})
    assert f"1 of its weights are not in its files, such as {name}" in refused({"name": str(tmp_path / "model")})


def test_folders_that_are_no_model_name_those_in_them(base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base, run / "checkpoints" / "step-000004")
    assert str(run / "checkpoints" / "step-000004") in refused({"name": str(run)})
    shutil.copytree(base, tmp_path / "both")
    tuned(base, tmp_path / "adapter", lora())
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "adapter" / file, tmp_path / "both" / file)
    assert "holds whole weights (model.safetensors) and an adapter" in refused({"name": str(tmp_path / "both")})
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    assert "names no base" in refused({"name": str(tmp_path / "adapter")})


def test_an_adapter_without_a_tokenizer_speaks_as_its_base(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "adapter", lora())
    policy, plain = loaded(tmp_path / "adapter", lora={"r": 3}), loaded(base)
    assert policy.codec.render([{"role": "user", "content": "hi"}]) == plain.codec.render(
        [{"role": "user", "content": "hi"}]
    )
    assert policy.codec.stop_ids == plain.codec.stop_ids


def test_peft_reads_a_continued_adapter_as_it_was_trained(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "adapter", lora())
    policy = loaded(tmp_path / "adapter", lora={"r": 3})
    torch.nn.init.normal_(policy.parameters[0].data)
    policy.save(tmp_path / "saved")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "saved"))
    assert torch.allclose(logits(theirs), logits(policy.model), atol=1e-5)
