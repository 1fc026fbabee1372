"""Run folders: sound in their parts, with fields, files and bytes damaged."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path
from typing import Any

from fuzzlib.logs import log
from fuzzlib.mutate import VALUES, as_json, mutate, warp

STAGES = ("start", "sft", "grpo")
_RECIPE = """name: a-run
seed: 3
model: {preset: tiny}
tasks: [{kind: fairness}, {kind: workflow, name: flows}]
grpo: {steps: 20, batch_size: 8, group_size: 4, optimizer: {max_grad_norm: 1.0}}
"""


def folder(path: Path, rng: random.Random) -> None:
    """Fill a folder with the files of a run, each of them sound, warped, damaged, odd or missing."""
    rate = rng.choice((0.0, 0.01, 0.04, 0.15))
    files: dict[str, bytes] = {
        "recipe.yaml": _RECIPE.encode(),
        "metrics.jsonl": _lines([warp(row, rng, rate) for row in _metrics(rng)]),
        "events.jsonl": _lines([warp(row, rng, rate) for row in _events(rng)]),
        "summary.json": as_json(warp(_summary(rng), rng, rate)),
        "check.json": as_json(warp(_checks(), rng, rate)),
        "environment.json": as_json(warp({"python": "3.12", "torch": {"version": "2", "cuda": None}}, rng, rate)),
        "diagnostics.json": as_json(warp(_diagnostics(), rng, rate)),
    }
    for name in ("eval-start", "eval-grpo", "grpo-000001", "grpo-000010"):
        rows = [warp(row, rng, rate) for row in _rollouts(rng, name)]
        files[f"rollouts/{name}.jsonl.gz"] = gzip.compress(_lines(rows), 1)
    (path / "rollouts").mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        _write(path / name, data, rng)
    if rng.random() < 0.05:
        (path / "train.log").write_bytes(log(rng))


def _write(path: Path, data: bytes, rng: random.Random) -> None:
    turn = rng.random()
    if turn < 0.05:
        return
    if turn < 0.06:
        path.mkdir()
    elif turn < 0.07:
        os.mkfifo(path)
    elif turn < 0.075:
        path.symlink_to(path.name)
    elif turn < 0.08:
        path.symlink_to("/dev/zero")
    elif turn < 0.09:
        path.write_bytes(b"")
    elif turn < 0.10:
        path.write_bytes(as_json(rng.choice(VALUES)))
    elif turn < 0.22:
        path.write_bytes(mutate(data, rng))
    else:
        path.write_bytes(data)


def _lines(rows: list[Any]) -> bytes:
    return b"\n".join(map(as_json, rows)) + b"\n"


def _metrics(rng: random.Random) -> list[dict[str, Any]]:
    scale = rng.choice((1.0, 1.0, 1e300, -1e308))
    rows: list[dict[str, Any]] = []
    for stage, count in (("sft", rng.choice((0, 3))), ("grpo", rng.choice((0, 1, 5, 25)))):
        for step in range(1, count + 1):
            names = ("reward", "loss", "grad_norm", "entropy", "kl", "learning_rate", "frac_reward_zero_std",
                "validity/flows",
                     "reward/fairness", "rewards/fairness/format/mean", "dead_groups/all_failed",
                     "dead_groups/all_solved",
                     "completions/mean_length", "time/sample", "step_time", "merge/cosine/a/b", "curriculum/success/x",
                     "answers/top_share/fairness", "answers/information/fairness", "validity")  # fmt: skip
            rows.append({"step": step, "stage": stage, **{name: rng.random() * scale for name in names}})
        rows.append({"step": count, "stage": "eval", "eval_stage": stage, "eval/fairness/score": rng.random()})
    return rows


def _events(rng: random.Random) -> list[dict[str, Any]]:
    said = "\x1b]8;;http://x\x07seen\x1b[0m \u202e by a \x9b31mmodel"
    codes = ("entropy-collapse", "kl-blowup", "interrupted", "rewards", "odd\x1b[31m")
    return [
        {"step": i, "code": rng.choice(codes), "severity": rng.choice(("info", "warning", "critical")),
         "message": said, "action": rng.choice((None, "warn", "shrink", "stop", "\x1b[31mstop")),
         "evidence": {"kl": 1.0, "cause": "budget"}}
        for i in range(rng.choice((0, 1, 4, 12)))
    ]  # fmt: skip


def _summary(rng: random.Random) -> dict[str, Any]:
    def score() -> dict[str, Any]:
        return {"score": rng.uniform(-1, 1), "se": rng.choice((0.05, 0.0, None))}

    def stage() -> dict[str, Any]:
        strata = {f"kind={k}": {**score(), "n": 20, "metrics": {"accuracy": 0.5}, "constant": score()} for k in "ab"}
        constant = {**score(), "answer": "no\x1b[2J answer"}
        rest = {"validity": 0.9, "length": 33.0, "n": 64, "metrics": {"accuracy": 0.4, "click/success": 0.2}}
        over = {**score(), "balanced": score()}
        return {**score(), **rest, "balanced": score(), "strata": strata, "constant": constant, "over_constant": over}

    tasks = {task: {name: stage() for name in STAGES} for task in ("fairness", "flows")}
    for task in tasks.values():
        task["verdict"] = {"improved": rng.random() < 0.5, "text": "It rose\x9b31m."}  # type: ignore[assignment]
    return {"tasks": tasks, "seconds": 12.0}


def _checks() -> dict[str, Any]:
    row = {"name": "tokens", "status": "warn", "message": "m\x1b[31m", "fix": "f", "evidence": {"a": [1, 2]}}
    return {"checks": [row, {**row, "status": "pass"}, {**row, "status": "fail", "evidence": "text"}]}


def _diagnostics() -> list[dict[str, Any]]:
    side = [{"id": 1, "text": "a"}, {"id": 2, "text": "\x1b"}]
    sample = {"prompt_id": "p", "reward": 0.5, "finish": "stop", "context_end": side, "completion_start": side,
              "completion_end": side, "entropy_first": 0.1, "entropy_mean": 0.2, "logp_mean": -1.0}  # fmt: skip
    return [{"step": s, "temperature": 1.0, "tasks": {"fairness": {"turns": 2, "samples": [sample]}}} for s in (1, 2)]


def _rollouts(rng: random.Random, name: str) -> list[dict[str, Any]]:
    rows = []
    for i in range(rng.choice((0, 2, 8))):
        task = rng.choice(("fairness", "flows"))
        info = {"domain": "math", "difficulty": "easy", "workflow": "Custom -> Review", "tokens": 120, "calls": 2}
        rows.append({"step": 1 if name.endswith("1") else 10, "stage": "grpo", "task": task, "prompt_id": f"p{i // 4}",
                     "prompt": "Q\x1b[31m", "completion": "A\u202e", "reward": rng.random(),
                         "parts": {"correctness": 1.0},
                     "valid": rng.random() < 0.8, "length": 12, "finish": "stop", "advantage": 0.3,
                         "info": info})  # fmt: skip
    return rows
