"""A policy that is saved and loaded again stops, and speaks, as it did before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Tokenizer

from levelhead.errors import InputError
from levelhead.policy.load import load_checkpoint, load_codec, load_policy
from levelhead.policy.packing import TokenSequence
from levelhead.recipe.model import Model
from levelhead.text.codec import Codec
from levelhead.text.fingerprint import PROBES
from levelhead.text.tiny import train_tokenizer
from small_run import TEXTS

TINY = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 2, "intermediate_size": 48, "vocab_size": 300}


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A model whose generation config lists a stop token that neither template nor tokenizer names."""
    folder = tmp_path / "model"
    load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS).save(folder)
    GenerationConfig(eos_token_id=[2, 7]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lora", [None, {"r": 2, "alpha": 4}])
def test_a_checkpoint_stops_where_the_policy_stopped(pretrained: Path, tmp_path: Path, lora: dict | None) -> None:
    section = Model(name=str(pretrained), lora=lora)
    policy = load_policy(section)
    assert 7 in policy.codec.stop_ids
    policy.save(tmp_path / "checkpoint")
    again = load_checkpoint(section, tmp_path / "checkpoint")
    assert (again.codec.stop_ids, again.codec.stop_id) == (policy.codec.stop_ids, policy.codec.stop_id)


@pytest.mark.parametrize("longer", [0, 8, 24])
def test_weights_lie_at_cache_lines_whatever_the_length_of_a_files_header(pretrained: Path, longer: int) -> None:
    path = pretrained / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "note": "x" * longer})
    (pretrained / "manifest.json").unlink(missing_ok=True)
    policy = load_policy(Model(name=str(pretrained), dtype="float32"))
    assert {tensor.data_ptr() % 64 for tensor in policy.model.parameters()} == {0}


def test_an_adapter_is_made_without_notices_that_only_library_authors_can_act_on(
    pretrained: Path, recwarn: pytest.WarningsRecorder
) -> None:
    load_policy(Model(name=str(pretrained), lora={"r": 2, "alpha": 4}, gradient_checkpointing=True))
    assert [str(note.message) for note in recwarn if issubclass(note.category, FutureWarning)] == []


def test_generate_on_a_saved_model_knows_the_whole_stop_set(pretrained: Path, tmp_path: Path) -> None:
    policy = load_policy(Model(name=str(pretrained)))
    policy.save(tmp_path / "checkpoint")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert set(plain.generation_config.eos_token_id) == policy.codec.stop_ids


def test_variables_of_the_recipe_reach_the_chat_template(pretrained: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% if not thinking %}(no thoughts){% endif %}{% endif %}"
    )
    asked = [{"role": "user", "content": "Who?"}]
    section = {"name": str(pretrained), "chat_template": str(template)}
    shown = [
        codec.tokenizer.decode(codec.render(asked))
        for codec in (load_codec(Model(**section, chat_template_kwargs={"thinking": on})) for on in (True, False))
    ]
    assert shown[1] == shown[0] + "(no thoughts)"


AWKWARD = (
    "  two blanks   three",
    "a\n    b\n\n\tc",
    "cafe\u0301 caf\u00e9",
    "12 345",
    "don't 'tis",
    "\u4f60\u597d \U0001f642",
)
"""Texts that another pre-tokenizer or a normaliser takes apart otherwise."""


def test_a_checkpoint_tokenizes_as_the_policy_that_it_was_saved_from(tmp_path: Path) -> None:
    section = Model(preset="tiny", tiny=TINY)
    policy = load_policy(section, texts=TEXTS)
    policy.save(tmp_path / "checkpoint")
    again = load_checkpoint(section, tmp_path / "checkpoint")
    for text in AWKWARD:
        message = [{"role": "user", "content": text}]
        assert again.codec.render(message) == policy.codec.render(message)


def test_a_tokenizer_that_is_loaded_and_saved_again_is_the_same_to_the_byte(tmp_path: Path) -> None:
    section = Model(preset="tiny", tiny=TINY)
    load_policy(section, texts=TEXTS).save(tmp_path / "first")
    load_checkpoint(section, tmp_path / "first").save(tmp_path / "second")
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def own_splitting() -> Qwen2Tokenizer:
    """A tokenizer of a class that sets up its own pre-tokenizer when it is loaded, with another one."""
    backend = train_tokenizer(TEXTS, 300)
    tokenizer = Qwen2Tokenizer(pad_token=backend.pad_token, eos_token=backend.eos_token)
    tokenizer._tokenizer = backend.backend_tokenizer
    tokenizer.chat_template = backend.chat_template
    return tokenizer


def test_a_class_that_rebuilds_its_tokenizer_gets_the_one_that_was_saved(tmp_path: Path) -> None:
    policy = load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS)
    policy.codec = Codec(own_splitting())
    policy.save(tmp_path / "checkpoint")
    again = load_checkpoint(Model(preset="tiny", tiny=TINY), tmp_path / "checkpoint")
    assert type(again.codec.tokenizer) is Qwen2Tokenizer
    for text in (*AWKWARD, *PROBES):
        assert again.codec.tokenizer.encode(text) == policy.codec.tokenizer.encode(text)


def test_a_checkpoint_whose_tokenizer_has_changed_is_refused(tmp_path: Path) -> None:
    section, folder = Model(preset="tiny", tiny=TINY), tmp_path / "checkpoint"
    load_policy(section, texts=TEXTS).save(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "NFC"}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    for load in (
        lambda: load_checkpoint(section, folder),
        lambda: load_policy(Model(name=str(folder))),
    ):
        with pytest.raises(InputError, match="not the one that the weights were trained with: the probe 'cafe") as seen:
            load()
        assert str(seen.value).startswith(f"{folder}: ")


def test_a_checkpoint_whose_tokenizer_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    section, folder = Model(preset="tiny", tiny=TINY), tmp_path / "checkpoint"
    load_policy(section, texts=TEXTS).save(folder)
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: damaged: it cannot be read"):
        load_checkpoint(section, folder)


def test_the_base_model_that_ships_loads_by_its_preset_and_fits_its_card(tmp_path: Path) -> None:
    section = Model(preset="base-tiny", dtype="float32")
    policy = load_policy(section)
    folder = Path(str(section.source))
    weights = (folder / "model.safetensors").read_bytes()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert len(weights) < 8_000_000
    assert hashlib.sha256(weights).hexdigest() in card
    assert f"{sum(p.numel() for p in policy.base.parameters()) / 1e6:.2f} million" in card
    policy.save(tmp_path / "checkpoint")
    again = load_checkpoint(section, tmp_path / "checkpoint")
    assert again.codec.render([{"role": "user", "content": "a  b"}]) == policy.codec.render(
        [{"role": "user", "content": "a  b"}]
    )


def test_the_base_model_quotes_the_sentence_that_answers() -> None:
    policy = load_policy(Model(preset="base-tiny", dtype="float32"))
    prompt = "Text: Mira's hat is green. Mira's drum is old.\nQuestion: What is Mira's hat?"
    answer = "Evidence: Mira's hat is green.\nAnswer: green"
    wrong = "Evidence: Mira's drum is old.\nAnswer: old"
    pairs = [policy.codec.demonstration([{"role": "user", "content": prompt}], text) for text in (answer, wrong)]
    sequences = [TokenSequence(pair.context_ids, pair.completion_ids) for pair in pairs]
    with torch.no_grad():
        totals = {
            index: float(logp.sum())
            for batch in policy.pack(sequences, 4096)
            for index, logp in zip(batch.indices, policy.score(batch).logp.split(list(batch.lengths)), strict=True)
        }
    assert totals[0] > totals[1] + 2
