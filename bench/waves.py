"""What it would save to let new groups enter the decoding batch as others finish: measured steps, replayed lengths.

    python bench/waves.py [--workload balanced] [--rows 256 1024] [--k 8] [--out FILE]

The sampler draws waves of ``rows_at_once`` completions; finished ones leave, and the next wave begins when all have.
First, the processor seconds of a decoding step are measured at several numbers of rows, behind prompts of the
workload's length.  Then lengths of answers are drawn, and both plans are replayed with those prices: waves as they are,
and places that are filled at once, at no cost of its own.  The second is a lower bound of what continuous filling would
take.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import torch
from speedlib.workloads import WORKLOADS, write

from levelhead.policy.load import load_policy
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model
from levelhead.records import Prompt
from levelhead.rollout.generators.local import COMPACT_FRACTION

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STEPS = 24


@torch.inference_mode()
def step_seconds(policy: Policy, prompt: int, k: int, rows: int) -> float:
    """Least processor seconds of a step of some rows, of a few repeats; the fastest one is the least disturbed."""
    generator = random.Random(rows)
    groups = max(1, rows // k)
    ids = [tuple(generator.randrange(2, policy.base.config.vocab_size) for _ in range(prompt)) for _ in range(groups)]
    prompts = [Prompt(str(i), "", (), each) for i, each in enumerate(ids)]
    decoder = policy.backend.decoders(policy)(prompts, min(k, rows), STEPS + 1)
    tokens = decoder.start().argmax(-1)
    seconds = []
    for _ in range(STEPS):
        start = process_time()
        tokens = decoder.step(tokens).argmax(-1)
        seconds.append(process_time() - start)
    return statistics.quantiles(seconds, n=8)[0]


def price(measured: dict[int, float], rows: int) -> float:
    """Seconds of a step, between the measured ones in proportion."""
    if rows in measured:
        return measured[rows]
    below, above = max(n for n in measured if n < rows), min(n for n in measured if n > rows)
    return measured[below] + (measured[above] - measured[below]) * (rows - below) / (above - below)


def in_waves(lengths: Sequence[int], rows: int, measured: dict[int, float]) -> float:
    """Seconds as the sampler does it: a wave at a time, compacted when enough rows have finished."""
    total = 0.0
    for start in range(0, len(lengths), rows):
        wave = sorted(lengths[start : start + rows])
        held = len(wave)
        for position in range(wave[-1]):
            left = sum(length > position for length in wave)
            if held - left >= max(1, COMPACT_FRACTION * held):
                held = left
            total += price(measured, held)
    return total


def filled(lengths: Sequence[int], rows: int, measured: dict[int, float]) -> float:
    """Seconds if every place that becomes free were taken at once, for nothing."""
    waiting, live, total = list(lengths), [], 0.0
    while waiting or live:
        while waiting and len(live) < rows:
            live.append(waiting.pop(0))
        total += price(measured, len(live))
        live = [length - 1 for length in live if length > 1]
    return total


def drawn_lengths(kind: str, n: int, most: int, seed: int = 0) -> list[int]:
    """Answer lengths: ``geometric`` with a mean of a quarter of the budget, cut at it; ``even`` up to it."""
    generator = random.Random(seed)
    if kind == "even":
        return [generator.randint(1, most) for _ in range(n)]
    return [min(most, 1 + int(generator.expovariate(4 / most))) for _ in range(n)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="balanced")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024], help="completions drawn at once")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--budget", type=int, default=256, help="longest answer")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[options.workload]
    with tempfile.TemporaryDirectory() as root:
        write(workload, Path(root))
        policy = load_policy(Model(name=root, tokenizer=f"{root}/tokenizer", dtype="float32"))
    counts = [n for n in COUNTS if n <= max(options.rows)]
    measured = {n: step_seconds(policy, workload.prompt, options.k, n) for n in counts}
    document = {"command": sys.argv, "step_seconds": measured, "replays": []}
    print("| rows | " + " | ".join(map(str, measured)) + " |")
    print("|---|" + "---|" * len(measured))
    print("| processor ms a step | " + " | ".join(f"{1e3 * s:.1f}" for s in measured.values()) + " |\n")
    print("| rows at once | completions | lengths | waves, s | filled at once, s | saved at most |")
    print("|---|---|---|---|---|---|")
    for rows in options.rows:
        for n in (256, 512, 1024):
            for kind in ("geometric", "even"):
                lengths = drawn_lengths(kind, n, options.budget)
                waves, full = in_waves(lengths, rows, measured), filled(lengths, rows, measured)
                document["replays"].append(
                    {"rows": rows, "completions": n, "lengths": kind, "waves": waves, "filled": full}
                )
                print(f"| {rows} | {n} | {kind} | {waves:.1f} | {full:.1f} | {100 * (1 - full / waves):.0f}% |")
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
