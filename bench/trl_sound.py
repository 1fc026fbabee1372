"""Sound GRPO runs in TRL with ``LevelheadCallback(stop=True)`` beside them: which end by themselves.

With a Python that has TRL:
``PYTHONPATH=src python bench/trl_sound.py [--seeds 2] --out FILE.json [--write] [NAME ...]``.

Whether a run is sound is measured by answers drawn before and after it, with which the trainer has nothing to do.
A run that is stopped is played again to its end without the stop, so that what was lost is seen.  ``--write`` writes
the page's table from FILE.json and trains nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "trl.md"
LOSS = 0.03
"""Reward that a run which holds its ceiling may end lower, by the chance of 512 answers."""


def play(name: str, seed: int, stop: bool) -> dict[str, Any]:
    """One run from SFT to end."""
    import torch
    from transformers import set_seed
    from trllib import kit, listen
    from trllib.sound import RUNS

    from levelhead.integrations.trl import LevelheadCallback

    run = copy.deepcopy(RUNS[name])
    start = time.perf_counter()
    torch.set_num_threads(1)
    words = kit.tokenizer()
    model = kit.policy(words, run.kind, seed)
    if run.until:
        kit.sft(model, words, run.shown or run.task, run.until, seed)
    # What judges is not what trains: a judge with a coin has a coin of its own here.
    judged = copy.deepcopy(run.task)
    before = kit.measure(model, words, judged, run.longest, seed)
    set_seed(seed)
    callback, recorder = LevelheadCallback(report=False, stop=stop), listen.Recorder()
    with tempfile.TemporaryDirectory() as folder, listen.listening() as said:
        trainer = trainer_of(run, model, words, Path(folder), seed, [callback, recorder])
        trainer.train()
    after = kit.measure(trainer.model, words, judged, run.longest, seed)
    rows = recorder.rows
    # The second update of a batch logs no reward.
    scored = [row for row in rows if "reward" in row]
    return {
        "run": name,
        "new": run.new,
        "seed": seed,
        "policy": run.kind + (", LoRA" if run.lora else ""),
        "steps": run.steps,
        "ended_at": rows[-1]["step"],
        "stopped_at": callback.stopped_at,
        "verdict": callback.live.diagnosis.verdict,
        "findings": listen.findings(callback),
        "told": dict(said),
        "drawn": [round(before, 3), round(after, 3)],
        "reward": [round(row["reward"], 3) for row in scored],
        "entropy": [round(row["entropy"], 4) for row in rows if "entropy" in row],
        "dead": [round(row["frac_reward_zero_std"], 3) for row in scored],
        "seconds": round(time.perf_counter() - start, 1),
        "log": rows,
    }


def trainer_of(run: Any, model: Any, words: Any, folder: Path, seed: int, callbacks: Sequence[Any]) -> Any:
    """TRL's trainer for a run."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    # A KL penalty makes TRL load the reference from where the policy came from.
    model.save_pretrained(folder / "start")
    model.config._name_or_path = str(folder / "start")
    adapter = None
    if run.lora:
        from peft import LoraConfig

        adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    fields: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 64, "num_generations": 8,
        "max_completion_length": run.longest, "max_steps": run.steps, "lr_scheduler_type": "constant",
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "seed": seed, "use_cpu": True,
        "disable_tqdm": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False,
        **run.settings,
    }  # fmt: skip
    return GRPOTrainer(
        model=model,
        processing_class=words,
        reward_funcs=list(run.task.rewards),
        train_dataset=Dataset.from_list(list(run.task.rows)),
        args=GRPOConfig(**fields),
        callbacks=list(callbacks),
        peft_config=adapter,
    )


def is_sound(result: dict[str, Any]) -> bool:
    """Whether the whole run learnt, or held what it had; a stopped one is judged by the same run without the stop."""
    before, after = result.get("drawn_without_stop", result["drawn"])
    return after >= before - LOSS * max(1.0, abs(before))


def table(results: Sequence[dict[str, Any]]) -> str:
    """The page's table."""
    lines = [
        "| run | policy | drawn before, after | reward, first and last five rows | entropy | rows | verdict | ends |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        first, last = (sum(part) / len(part) for part in (r["reward"][:5], r["reward"][-5:]))
        told = ", ".join(f"`{code}` {round(100 * f[0])}%" for code, f in r["findings"].items())
        ends = "by itself" if r["stopped_at"] is None else f"**stopped at {r['stopped_at']}**"
        lines.append(
            f"| {r['run']}{' (new)' if r['new'] else ''} | {r['policy']} | {_number(r['drawn'][0])}, "
            f"{_number(r['drawn'][1])} | {_number(first)}, {_number(last)} | {r['entropy'][0]:.2f}, "
            f"{r['entropy'][-1]:.2f} | {len(r['reward'])} | {r['verdict']}{': ' + told if told else ''} | {ends} |"
        )
    return "\n".join(lines)


def summary(results: Sequence[dict[str, Any]]) -> str:
    """How many of all seeds ended by themselves, which did not, and which did not hold what they had."""
    seeds = len({r["seed"] for r in results})
    stopped = [f"{r['run']} (seed {r['seed']}, at {r['stopped_at']})" for r in results if r["stopped_at"] is not None]
    unsound = [f"{r['run']} (seed {r['seed']})" for r in results if not r["sound"]]
    text = f"Over {seeds} seeds {len(results) - len(stopped)} of {len(results)} runs end by themselves"
    text += f"; stopped: {'; '.join(stopped)}." if stopped else "."
    called = sum(r["verdict"] in ("warning", "critical") for r in results)
    text += f" At their end {called} are called unhealthy."
    if unsound:
        text += f" By the answers drawn, not sound and counted all the same: {'; '.join(unsound)}."
    return text


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def main() -> None:
    """Run them all, or write what has been run."""
    sys.path.insert(0, str(ROOT / "bench"))
    from trllib.listen import write_between
    from trllib.sound import RUNS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="runs to play; all unless given")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--logs", type=Path, help="also write every logged row, as JSON lines")
    parser.add_argument("--write", action="store_true", help="write the page's table")
    given = parser.parse_args()
    results = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.is_file() else []
    if given.write:
        write_between(PAGE, "sound", table([r for r in results if r["seed"] == 0]) + "\n\n" + summary(results))
        return
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for name in given.names or RUNS:
            result = play(name, seed, stop=True)
            if result["stopped_at"] is not None:
                result["drawn_without_stop"] = play(name, seed, stop=False)["drawn"]
            log = result.pop("log")
            result["sound"] = is_sound(result)
            if given.logs:
                with given.logs.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({"run": name, "seed": seed, "log": log}) + "\n")
            results = [r for r in results if (r["run"], r["seed"]) != (name, seed)] + [result]
            results.sort(key=lambda r: (r["seed"], list(RUNS).index(r["run"])))
            if given.out:
                given.out.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n", encoding="utf-8")
            short = {k: v for k, v in result.items() if k not in ("entropy", "dead", "reward", "policy", "new")}
            good = result["sound"] and result["stopped_at"] is None
            print("ok " if good else "BAD", json.dumps(short), result["reward"][:2], result["reward"][-3:],
                  result["entropy"][0], result["entropy"][-1], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
