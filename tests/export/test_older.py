"""An export is one model for transformers 4 and 5: the same tokens, the same angles, the same answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    LlamaConfig,
    PhiConfig,
    Qwen2Config,
)

from levelhead.export.older import write_for_older
from levelhead.policy.load import load_policy
from levelhead.recipe.model import Model
from small_run import TEXTS, TINY
from text.families import tokenizer_of

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 300,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS = {
    "plain": LlamaConfig(**SMALL, rope_parameters={"rope_type": "default", "rope_theta": 100000.0}),
    "scaled": LlamaConfig(
        **SMALL, rope_parameters={**LLAMA3, "original_max_position_embeddings": 64, "rope_theta": 500000.0}
    ),
    "yarn": Qwen2Config(**SMALL, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}),
    "partial": PhiConfig(
        **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 7000.0, "partial_rotary_factor": 0.5}
    ),
    "two kinds of layers": Gemma3TextConfig(**SMALL, head_dim=16),
}
ASK = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, __version__
folder, chat = sys.argv[1], json.loads(sys.argv[2])
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).float()
prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
with torch.no_grad():
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    logits = model(ids).logits[0, -1]
print(json.dumps({"version": __version__, "ids": answer[0].tolist(), "logits": logits.tolist()}))
"""
CHAT = [{"role": "user", "content": "question 3? don't  'tis caf\u00e9"}]


def of_version_4() -> Path:
    """The Python of an environment with transformers 4."""
    python = Path(os.environ.get("LEVELHEAD_TRANSFORMERS4", "")) / "bin" / "python"
    if "LEVELHEAD_TRANSFORMERS4" not in os.environ or not python.is_file():
        pytest.skip("LEVELHEAD_TRANSFORMERS4 names no environment with transformers 4 (docs/export.md)")
    return python


def exported(folder: Path, config: Any = None, **tokens: Any) -> Path:
    """A tiny policy as an export holds it, with weights of another architecture where a config is given."""
    policy = load_policy(Model(preset="tiny", tiny=TINY), texts=TEXTS)
    policy.codec.tokenizer.add_special_tokens(tokens)
    if config is not None:
        torch.manual_seed(0)
        policy.model = AutoModelForCausalLM.from_config(config)
    policy.save(folder)
    write_for_older(folder)
    return folder


def test_names_that_version_4_knows_are_written(tmp_path: Path) -> None:
    folder = exported(tmp_path / "model", CONFIGS["scaled"], additional_special_tokens=["<think>"])
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["additional_special_tokens"] == ["<think>"]
    assert "extra_special_tokens" not in tokenizer
    assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == 500000.0
    assert config["rope_scaling"] == {**LLAMA3, "original_max_position_embeddings": 64}
    assert config["torch_dtype"] == "float32"


@pytest.mark.parametrize("name", CONFIGS)
def test_version_5_reads_what_it_wrote(name: str, tmp_path: Path) -> None:
    CONFIGS[name].save_pretrained(tmp_path / "before")
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "config.json").write_bytes((tmp_path / "before" / "config.json").read_bytes())
    write_for_older(tmp_path / "after")
    before, after = (AutoConfig.from_pretrained(tmp_path / folder) for folder in ("before", "after"))
    assert after.rope_parameters == before.rope_parameters


def test_version_5_reads_the_same_tokenizer(tmp_path: Path) -> None:
    folder = exported(tmp_path / "model", additional_special_tokens=["<think>", "</think>"])
    policy = load_policy(Model(name=str(folder)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "<think> a question </think>  3?"
    assert tokenizer.encode(text) == policy.codec.tokenizer.encode(text)
    assert {"<think>", "</think>"} <= set(tokenizer.all_special_tokens)
    assert [token for token in tokenizer.tokenize(text) if "think" in token] == ["<think>", "</think>"]


@pytest.mark.parametrize("name", ["tiny", *CONFIGS])
def test_version_4_answers_as_version_5_does(name: str, tmp_path: Path) -> None:
    python = of_version_4()
    folder = exported(tmp_path / "model", CONFIGS.get(name), additional_special_tokens=["<think>"])
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run(
        [python, "-c", ASK, folder, json.dumps(CHAT)], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    theirs = json.loads(run.stdout.splitlines()[-1])
    assert theirs["version"].startswith("4.")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).float()
    prompt = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    with torch.no_grad():
        ours = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        logits = model(ids).logits[0, -1]
    assert theirs["ids"] == ours[0].tolist()
    assert torch.allclose(torch.tensor(theirs["logits"]), logits, atol=1e-4)


ENCODE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps([tokenizer.encode(text) for text in json.loads(sys.argv[2])]))
"""
SPACED = ["<think> a question </think>  3?", " leading", "a\n\nb", "Zo\u00eb \u6771\u4eac it's"]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen25", "Qwen2Tokenizer"),
        ("llama3", "GPT2Tokenizer"),
        ("mistral", "LlamaTokenizer"),
        ("gemma", "GemmaTokenizer"),
        *((family, None) for family in ("mistral", "gemma", "llama3", "deepseek")),
    ],
)
def test_version_4_reads_the_same_tokens_whatever_the_class(family: str, kind: str | None, tmp_path: Path) -> None:
    python = of_version_4()
    tokenizer_of(family).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | ({"tokenizer_class": kind} if kind else {})))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path / "model")
    write_for_older(tmp_path / "model")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, "-c", ENCODE, tmp_path / "model", json.dumps(SPACED)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == [tokenizer.encode(text) for text in SPACED]
