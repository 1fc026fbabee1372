"""The first steps of the recipes whose model comes from the hub: true shapes, random weights, no network.

    python bench/first_steps.py [NAME ...] [--steps 10] [--data DATA] [--out bench/results/first_steps.jsonl] [--toy]

Each recipe is trained as it ships, by its own tasks, precision, adapter, guard and audit; see ``bench/hub_recipes.py``
for what stands in for tokenizer, data (``DATA`` holds bbq, halueval and gsm8k) and endpoint.  Weights are drawn where
they lie, in the model's true shape.  Without SFT, preflight and held-out evaluation of size: the steps are what is
shown.  A row a recipe, written at once: seconds, losses, gradient norms and memory of each step, what guard and audit
said, or why there are none.  ``--toy`` keeps two layers of 64.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

import hub_recipes
import torch
from gpulib.shapes import LFM2_350M, LLAMA_3_8B, QWEN2_5_05B
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from levelhead.errors import EngineError, InputError, PolicyError, RewardError
from levelhead.recipe import load

QWEN2_5_7B = QWEN2_5_05B | {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "dual-llama3-8b": (LLAMA_3_8B, 128256),
    "workflow-qwen2.5-7b": (QWEN2_5_7B, 152064),
    "browser-lfm2-350m": (LFM2_350M, 65536),
    "function-qwen2.5-0.5b": (QWEN2_5_05B, 151936),
}
"""Architecture and vocabulary of each recipe's model."""
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "max_position_embeddings": 8192}  # fmt: skip
SHOWN = ("loss", "grad_norm", "reward", "time/")
"""Beginnings of the metrics that a row holds."""


def write_model(name: str, folder: Path, *, toy: bool) -> Path:
    """Write config and tokenizer of a recipe's model."""
    shape, vocab = SHAPES[name]
    keys = dict(shape)
    kind = keys.pop("model_type")
    tokenizer = hub_recipes.tokenizer_of(hub_recipes.RECIPES[name])
    if toy:
        keys |= SMALL | ({"layer_types": ["conv", "full_attention"]} if "layer_types" in keys else {})
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    folder.mkdir()
    AutoConfig.for_model(kind, **keys, **ends, vocab_size=512 if toy else vocab).save_pretrained(folder)
    family = hub_recipes.FAMILIES[hub_recipes.RECIPES[name]]
    stops = [tokenizer.convert_tokens_to_ids(token) for token in family.generation_eos]
    GenerationConfig(eos_token_id=stops or tokenizer.eos_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_model(section: Any, dtype: torch.dtype, _weights: bool) -> Any:
    """In place of reading weights: draw them on the device."""
    from levelhead.policy.device import resolve_device

    torch.manual_seed(0)
    with resolve_device(section.device):
        return AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(section.name), dtype=dtype, attn_implementation=section.attention
        )


def settings(options: argparse.Namespace) -> list[str]:
    """Keys that leave the steps alone."""
    return [f"grpo.steps={options.steps}", "sft=null", "eval.every=0", "eval.items=1", "eval.final_items=1"]


def first_steps(name: str, data: Path, url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train a recipe for some steps; returns what its log says."""
    from levelhead.cli.train import run

    model = write_model(name, folder / "model", toy=options.toy)
    given = hub_recipes.changes(name, model, data, url, 0, folder)
    recipe = load(hub_recipes.ROOT / "recipes" / f"{name}.yaml", [*given, *settings(options)])
    with mock.patch("levelhead.policy.load._pretrained", random_model), contextlib.redirect_stdout(io.StringIO()):
        run(recipe, folder / "run", False, True, check=False)
    steps = [row for row in lines(folder / "run" / "metrics.jsonl") if row.get("stage") == "grpo"]
    return {
        "steps": [{k: v for k, v in row.items() if k.startswith(SHOWN)} for row in steps],
        "done": len(steps),
        "events": [
            {k: event.get(k) for k in ("kind", "level", "step")} for event in lines(folder / "run" / "events.jsonl")
        ],
    }


def lines(path: Path) -> list[dict[str, Any]]:
    """What a log holds; nothing where nothing was written."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row a recipe."""
    cuda = torch.cuda.is_available()
    for name in options.names or list(SHAPES):
        start = time.perf_counter()
        row: dict[str, Any] = {"recipe": name, "toy": options.toy, "device": "cpu"}
        if cuda:
            row["device"] = torch.cuda.get_device_name()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as place, hub_recipes.endpoint() as url:
            try:
                row |= first_steps(name, options.data.resolve(), url, Path(place), options)
            except (
                InputError,
                PolicyError,
                RewardError,
                EngineError,
                RuntimeError,
                ImportError,
                OSError,
                SystemExit,
            ) as error:
                row["error"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
        if cuda:
            row["peak_bytes"] = torch.cuda.max_memory_allocated()
        yield row | {"seconds": round(time.perf_counter() - start, 1)}


def main() -> int:
    """Write a line a recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *SHAPES], default=[])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with bbq, halueval and gsm8k")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "first_steps.jsonl")
    parser.add_argument("--toy", action="store_true", help="two layers of 64")
    options = parser.parse_args()
    whole = True
    with options.out.open("w", encoding="utf-8") as file:
        for row in rows(options):
            file.write(json.dumps(row) + "\n")
            file.flush()
            whole &= row.get("done") == options.steps
            print({k: v for k, v in row.items() if k not in ("steps", "events")}, flush=True)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
