"""Measure what is said of runs with nothing wrong: false failures and warnings before, false alarms while training.

python bench/sound_settings.py --out ROWS.jsonl [NAME ...] [--seeds 3]   run, each setting and seed in its own process
python bench/sound_settings.py --out ROWS.jsonl --write before           write results and the page's table

The settings go over every estimator, loss and merge, and over aggregations, KL, entropy, shaping, importance
corrections, sampling controls, LoRA, bfloat16, drawing ahead, several turns and resumed runs.  Rows go to ROWS.jsonl
one by one, so that an interrupted bench goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faultlib.children import Job, make, read  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "experiments" / "faults.md"
MARKS = ("<!-- sound -->", "<!-- end of sound -->")
LABELS = ("before", "after")
AGAIN = ("grpo.updates_per_batch=2", "grpo.epochs=2", "grpo.optimizer.learning_rate=3e-4")
LORA = "model.lora={r: 4, alpha: 8}"
GDPO = "grpo.advantage.kind=gdpo"


def _all() -> dict[str, tuple[str, tuple[str, ...], str, bool]]:
    """Probe, settings, reward and whether it is resumed, by name."""
    by_name: dict[str, tuple[str, tuple[str, ...], str, bool]] = {}

    def add(name: str, *settings: str, probe: str = "single", reward: str = "closeness", resumes: bool = False) -> None:
        by_name[name] = (probe, settings, reward, resumes)

    add("as it is")
    for kind in ("dr_grpo", "rloo", "batch", "reinforce_pp", "reinforce_pp_baseline", "opo", "gtpo"):
        add(f"advantage {kind}", f"grpo.advantage.kind={kind}")
    add("advantage workflow_aware", "grpo.advantage={kind: workflow_aware, feature_weights: {closeness: 1.0}}")
    for kind in ("pass_at_k", "pkpo"):
        add(f"advantage {kind}", f"grpo.advantage={{kind: {kind}, k: 2}}")
    add("advantage gdpo", GDPO, "grpo.advantage.weights={closeness: 1.0, brevity: 0.5}", reward="two")
    add("advantage reinforce_pp over tokens", "grpo.advantage={kind: reinforce_pp, statistics: tokens}")
    add("advantage clipped, population", "grpo.advantage={clip: 1.5, ddof: 0, eps: 1.0e-6}")
    for kind in ("reinforce", "gspo", "gspo_token", "cispo", "gmpo", "sapo", "clip_cov", "kl_cov"):
        reused = () if kind == "reinforce" else AGAIN
        add(f"loss {kind}", f"grpo.loss.kind={kind}", *reused)
    add("loss ppo_clip reused, dual clip", "grpo.loss={clip_low: 0.2, clip_high: 0.28, dual_clip: 3.0}", *AGAIN)
    add("loss top entropy", "grpo.loss.top_entropy=0.5")
    for kind in ("sequence_mean", "fixed_length"):
        add(f"aggregation {kind}", f"grpo.loss.aggregation={kind}", "grpo.tokens_per_microbatch=128")
    for kind in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"):
        add(f"importance {kind}", f"grpo.loss.importance={kind}", "grpo.sampling.top_p=0.95", *AGAIN)
    for kind in ("sum", "mean", "cagrad", "pcgrad", "upgrad", "mgda", "aligned_mtl"):
        add(f"merge {kind}", f"grpo.merge.kind={kind}", "grpo.kl.coef=0.01", probe="dual")
    add("merge cagrad, whole losses", "grpo.merge={kind: cagrad, memory: low, scale: own}", probe="dual")
    add("tasks of other weights", "tasks.0.weight=3", "grpo.merge.monitor_every=2", probe="dual")
    for kind in ("k1", "k2", "k3"):
        add(f"kl {kind}", f"grpo.kl={{coef: 0.02, estimator: {kind}, gradient: k2}}")
    add("kl by importance, reused", "grpo.kl={coef: 0.02, gradient: importance}", *AGAIN)
    add("kl in the reward", "grpo.kl={where: reward, estimator: k1, coef: 0.02}")
    add("kl in a band", "grpo.kl={coef: 0.02, controller: {kind: band, low: 0.001, high: 0.01}}")
    add("kl by a lagrangian", "grpo.kl={coef: 0.02, controller: {kind: lagrangian, target: 0.01}}", probe="dual")
    add("entropy bonus", "grpo.entropy.coef=0.005")
    add("entropy target", "grpo.entropy.controller={kind: entropy_target, target: 0.3}")
    add("shaping overlong", "tasks.0.shaping.length={kind: overlong, cache: 4}")
    add(
        "shaping per token, scaled", "tasks.0.shaping={length: {kind: per_token, coef: 0.1}, scale: 2.0, clip: [-3, 3]}"
    )
    add("shaping group relative", "tasks.0.shaping.length={kind: group_relative, coef: 0.1}")
    add("shaping z-score", "tasks.0.shaping.zscore={}", "grpo.advantage.kind=dr_grpo")
    truncated = "grpo.sampling={max_new_tokens: 16, top_p: 0.95, top_k: 50, min_p: 0.01}"
    add("sampling top-p, top-k, min-p", truncated, "grpo.loss.importance=token_truncate")
    add("sampling at 0.8", "grpo.sampling.temperature=0.8")
    cooled = "{max_new_tokens: 16, temperature: 1.0, temperature_final: 0.7, temperature_schedule: linear}"
    add("sampling cooled", f"grpo.sampling={cooled}")
    add("dynamic sampling", "grpo.dynamic_sampling=2", "sft.steps=75", reward="exact")
    add("learnability", "grpo.curriculum=learnability")
    add("truncated left out", "grpo.mask_truncated=true")
    add("rewards that drop", "tasks.0.on_reward_error=drop", reward="gappy")
    add("groups of eight, small micro-batches", "grpo.group_size=8", "grpo.tokens_per_microbatch=128")
    add("cosine schedule, weight decay", "grpo.optimizer={learning_rate: 1.0e-3, schedule: cosine, weight_decay: 0.1}")
    add("LoRA", LORA)
    add("LoRA with a reference", LORA, "grpo.kl.coef=0.02")
    add("bfloat16", "model.dtype=bfloat16")
    add("bfloat16 LoRA, reused", "model.dtype=bfloat16", LORA, *AGAIN)
    add("ahead", "grpo.async=1")
    add("ahead, corrected, LoRA", "grpo.async=1", "grpo.loss.importance=token_truncate", LORA)
    add("several turns", probe="episodes")
    add("several turns, reused, with a reference", "grpo.kl.coef=0.02", *AGAIN, probe="episodes")
    add("resumed", "grpo.kl.coef=0.02", resumes=True)
    add("resumed, cosine, two tasks", "grpo.optimizer.schedule=cosine", probe="dual", resumes=True)
    add("evaluated on the way", "eval.every=5", "checkpoint.best=true")
    return by_name


SETTINGS = _all()


def jobs(names: list[str], seeds: int, runs: Path) -> Iterator[tuple[str, Job]]:
    """Yield a job for each setting and seed, all settings of a seed before the next seed."""
    from faults import probes

    for seed in range(seeds):
        for name in names:
            probe, settings, reward, resumes = SETTINGS[name]
            run = probes.Probe(probe, (*settings, f"seed={seed}"), reward, resumes)
            yield f"{name} | {seed}", partial(row_of, run, runs / run.key)


def row_of(probe: Any, folder: Path) -> dict[str, Any]:
    """Make one row; the run's folder is not kept."""
    from faults.probes import watch

    shutil.rmtree(folder, ignore_errors=True)
    try:
        return watch(probe, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def alarms(row: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what was said of a sound run, by who said it; empty lists where nobody said anything."""
    if row.get("error"):
        return {"failed": [], "warned": [], "guard": [], "doctor": [], "ended": [row["error"]]}
    return {
        "failed": [c["name"] for c in row["check"] if c["status"] == "fail"],
        "warned": [c["name"] for c in row["check"] if c["status"] == "warn"],
        "guard": list(dict.fromkeys(e["code"] for e in row["events"])),
        "doctor": [row["doctor"]["code"]] if row["doctor"] else [],
        "ended": [row["stopped"]] if row["stopped"] else [],
    }


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Write counts of each label, then the settings of which something was said, as Markdown."""
    who = ("failed", "warned", "guard", "doctor", "ended")
    lines = ["| | settings | runs | preflight fails | preflight warns | guard or run | doctor | ended |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|"]
    for label, rows in results.items():
        settings = {name.rsplit(" | ", 1)[0] for name in rows}
        counts = [sum(bool(row[each]) for row in rows.values()) for each in who]
        lines.append(f"| {label} | {len(settings)} | {len(rows)} | {' | '.join(map(str, counts))} |")
    lines += ["", "| setting | seed | " + " | ".join(results) + " |", "|---|---:|" + "---|" * len(results)]
    order = dict.fromkeys(name for rows in results.values() for name in rows)
    for identity in sorted(order, key=lambda each: list(SETTINGS).index(each.rsplit(" | ", 1)[0])):
        cells = [_cell(rows[identity]) if identity in rows else "" for rows in results.values()]
        if any(cell not in ("", "-") for cell in cells):
            name, seed = identity.rsplit(" | ", 1)
            lines.append(f"| {name} | {seed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, list[str]]) -> str:
    said = [f"fails: {', '.join(row['failed'])}"] if row["failed"] else []
    said += [f"warns: {', '.join(row['warned'])}"] if row["warned"] else []
    said += [f"guard: {', '.join(row['guard'])}"] if row["guard"] else []
    said += [f"doctor: {row['doctor'][0]}"] if row["doctor"] else []
    said += [f"ended: {row['ended'][0]}"] if row["ended"] else []
    return "; ".join(said) or "-"


def write(label: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a label's results, and the table of all labels into the page."""
    results = {name: alarms(row) for name, row in rows.items()}
    _file(label).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    by_label = {each: json.loads(_file(each).read_text(encoding="utf-8")) for each in LABELS if _file(each).is_file()}
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(by_label)}\n{MARKS[1]}{after}", encoding="utf-8")
    print(table({label: results}))


def _file(label: str) -> Path:
    return RESULTS / f"sound_settings_{label}.json"


def main() -> None:
    """Run, or write what has been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="settings; all unless given")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each setting")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one run may take")
    parser.add_argument("--write", choices=LABELS, help="write results and page")
    given = parser.parse_args()
    if given.write:
        write(given.write, read(given.out))
        return
    names = given.names or list(SETTINGS)
    make(given.out, jobs(names, given.seeds, given.out.with_suffix(".runs")), given.limit)
    print(table({"now": {name: alarms(row) for name, row in read(given.out).items()}}))


if __name__ == "__main__":
    main()
