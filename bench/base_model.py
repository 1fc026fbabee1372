"""Make the base model that ships with the package again: ``python bench/base_model.py``.

Trains ``recipes/base-tiny/1.yaml`` to ``8.yaml``, each from the weights of the one before (or takes the finished runs
that ``--runs`` names), and writes ``src/levelhead/models/base-tiny``: weights in bfloat16,
tokenizer, the runs' log and the model card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from whole import train_whole

from levelhead.policy.load import load_checkpoint
from levelhead.policy.policy import Policy
from levelhead.recipe import load
from levelhead.training.checkpoint import newest_checkpoint
from levelhead.training.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
RECIPES = tuple(ROOT / "recipes" / "base-tiny" / f"{number}.yaml" for number in range(1, 9))
TARGET = ROOT / "src" / "levelhead" / "models" / "base-tiny"
LOGGED = 20
"""Every how many steps the log that is kept has a row."""

CARD = """\
---
license: apache-2.0
library_name: levelhead
---
# base-tiny

A base model of {millions:.2f} million parameters that has learnt to copy, to find a fact, to quote a sentence, to
choose a letter and to act on a page, and nothing about the world. Levelhead's small recipes start from it, so that
their policies can read before they are reinforced. It is no use for anything else.

| | |
|---|---|
| architecture | Qwen2, {layers} layers of width {width}, {heads} heads, {vocabulary} tokens |
| weights | bfloat16, {megabytes:.1f} MB, SHA-256 `{digest}` |
| data | made-up texts of `bench/primer.py`; no scene, name or fact of the tasks' items is among them |
| recipes | `recipes/base-tiny/1.yaml` to `8.yaml`, one after the other |
| training | {steps} SFT steps with Muon, {minutes:.0f} minutes on a core |
| made by | `python bench/base_model.py` |
| licence | Apache-2.0, as the package |

Share of held-out questions answered exactly (greedy, by the float32 weights before rounding), {items} of them:

| kind | exact | last line right |
|---|---|---|
{rows}
"""


def export(policy: Policy, runs: Sequence[Path]) -> None:
    """Write weights, tokenizer, log and card."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    policy.base.to(torch.bfloat16).save_pretrained(TARGET)
    policy.codec.save(TARGET)
    (TARGET / "model.safetensors").chmod(0o644)
    rows = [
        {"run": run.name, **json.loads(line)}
        for run in runs
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    lines = [json.dumps(row) for row in rows if row["stage"] != "sft" or row["step"] % LOGGED == 0]
    (TARGET / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (TARGET / "README.md").write_text(card(policy, runs), encoding="utf-8")


def card(policy: Policy, runs: Sequence[Path]) -> str:
    """The model card, with the figures of the last run."""
    summaries = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    stages, config = [load(recipe).sft for recipe in RECIPES], policy.base.config
    result = summaries[-1]["tasks"]["primer"]["sft"]
    metrics = result["metrics"]
    kinds = sorted(name.removeprefix("exact_match/") for name in metrics if name.startswith("exact_match/"))
    rows = [f"| {kind} | {metrics[f'exact_match/{kind}']:.1%} | {metrics[f'accuracy/{kind}']:.1%} |" for kind in kinds]
    weights = (TARGET / "model.safetensors").read_bytes()
    return CARD.format(
        millions=sum(p.numel() for p in policy.base.parameters()) / 1e6,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
        megabytes=len(weights) / 1e6,
        digest=hashlib.sha256(weights).hexdigest(),
        steps=sum(stage.steps for stage in stages if stage),
        minutes=sum(summary["seconds"] for summary in summaries) / 60,
        items=result["n"],
        rows="\n".join([*rows, f"| all | {metrics['exact_match']:.1%} | {metrics['accuracy']:.1%} |"]),
    )


def main() -> None:
    """Train unless runs are given, then export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, nargs=len(RECIPES), default=(), help="Finished runs, instead of training.")
    runs = parser.parse_args().runs
    os.chdir(ROOT)
    if not runs:
        recipes = [load(recipe) for recipe in RECIPES]
        runs = [ROOT / "runs" / recipe.name for recipe in recipes]
        for recipe, run in zip(recipes, runs, strict=True):
            train_whole(recipe, run)
    checkpoint = newest_checkpoint(RunDir(runs[-1]))
    if checkpoint is None:
        raise SystemExit(f"{runs[-1]}: holds no checkpoint")
    export(load_checkpoint(load(RECIPES[-1]).model, checkpoint), runs)
    print(TARGET)


if __name__ == "__main__":
    main()
