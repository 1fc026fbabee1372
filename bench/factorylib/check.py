"""Whether simulated runs look like real ones: the same faults in tiny trainings of the product, and what both show.

The product's runs are those of the fault lab (``tests/faults``): a transformer of a few thousand weights, fine-tuned
and reinforced for twenty steps.  The simulated ones have as many steps.  What is compared is what detectors look at,
without a scale.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from factorylib.faults import FAULTS
from factorylib.journal import simulate
from factorylib.make import with_fault
from factorylib.plans import sound_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

TWINS: dict[str, str] = {
    "none": "",
    "advantages-negated": "sign-of-advantage",
    "kl-rewarded": "kl-sign",
    "entropy-penalised": "entropy-sign",
    "bonus-too-strong": "entropy-bonus-huge",
    "learning-rate-too-high": "rate-high",
    "gradients-not-cleared": "gradients-kept",
    "rewards-out-of-step": "rewards-shuffled",
    "format-nobody-meets": "reward-zero",
    "reward-constant": "reward-constant",
    "greedy-rollouts": "greedy-sampling",
    "stale-sampler-weights": "weights-never-sent",
    "temperature-in-sampling-only": "temperature-forgotten",
    "weights-decay-away": "weight-decay-huge",
    "optimizer-of-a-copy": "weights-frozen",
    "group-of-two": "groups-of-two",
    "leash-too-short": "kl-too-strong",
    "batch-used-up": "many-epochs",
}
"""Faults of the lab with the factory's of the same kind."""
STEPS = 20
LEAST_STEPS = 8
"""Steps of a real run that are enough to be compared."""
RATE = 0.01
"""Simulated rate at which a sound run gains about what the lab's does in as many steps."""
SIMULATED = 12
"""Simulated runs of a fault, whose median is compared."""
Rows = Sequence[Mapping[str, float]]


def shown(rows: Rows) -> dict[str, float]:
    """What a run shows, without a scale; NaN for what its log has no column of."""

    def ends(name: str) -> tuple[float, float]:
        values = [float(row[name]) for row in rows if name in row and np.isfinite(row[name])]
        return (float(np.mean(values[:4])), float(np.mean(values[-4:]))) if values else (np.nan, np.nan)

    entropy, reward, spread = ends("entropy"), ends("reward"), ends("reward_std")
    gradient = np.array([row["grad_norm"] for row in rows if np.isfinite(row.get("grad_norm", np.nan))] or [0.0])
    return {
        "entropy, log of end by beginning": float(np.log(max(entropy[1], 1e-4) / max(entropy[0], 1e-4))),
        "reward, end less beginning": reward[1] - reward[0],
        "spread within groups, end less beginning": spread[1] - spread[0],
        "groups without contrast at the end": ends("frac_reward_zero_std")[1],
        "gradient, log of largest by median": float(
            np.log10(max(gradient.max(), 1e-9) / max(float(np.median(gradient)), 1e-9))
        ),
    }


def real_run(name: str) -> dict[str, float] | None:
    """Train the lab's probe with a fault in it; nothing where the product refuses to take a step with it."""
    from faults import matrix
    from faults.known import FAULTS as LAB
    from faults.known import inject

    fault = LAB.get(name, matrix.CLEAN)
    entered = contextlib.nullcontext() if name == "none" else inject(name)
    with entered, tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        matrix._train(fault, Path(folder) / "run", ())
        written = Path(folder) / "run" / "metrics.jsonl"
        lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    rows = [row for row in map(json.loads, lines) if row.get("stage") == "grpo"]
    return shown(rows) if len(rows) >= LEAST_STEPS else None


def simulated_run(name: str, seed: int) -> dict[str, float]:
    """Simulate the same fault on a task of partial credit, as the lab's is."""
    rng = np.random.default_rng([11, seed])
    plan = replace(sound_plan("partial", int(rng.integers(1 << 30)), rng), steps=STEPS, engine_noise=0.005)
    plan = replace(plan, schedule="constant", adam=True, slow=False, rate=RATE, harmless_spike=0.0)
    if name:
        plan = with_fault(plan, FAULTS[name], 0.5, rng)
        plan.begin = 0.0
    with np.errstate(all="ignore"):
        return shown([row for _, row in simulate(plan).rows])


def compare(names: Sequence[str] = tuple(TWINS)) -> dict[str, object]:
    """Features of both sides by fault, and how well faults stand in the same order on both (Spearman 1904)."""
    real: dict[str, dict[str, float]] = {}
    simulated: dict[str, dict[str, float]] = {}
    refused = []
    for name in names:
        features = real_run(name)
        if features is None:
            refused.append(name)
            continue
        real[name] = features
        runs = [simulated_run(TWINS[name], seed) for seed in range(SIMULATED)]
        simulated[name] = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
        print(name, {k: [round(v, 2), round(simulated[name][k], 2)] for k, v in features.items()}, flush=True)
    ranks = {}
    for key in real[names[0]]:
        pairs = [(real[n][key], simulated[n][key]) for n in real]
        both = [(a, b) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
        ranks[key] = float(np.corrcoef(_ranks([a for a, _ in both]), _ranks([b for _, b in both]))[0, 1])
    return {
        "compared": len(real),
        "refused": refused,
        "rank_correlation": ranks,
        "real": real,
        "simulated": simulated,
    }


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks, equal values sharing theirs."""
    array = np.round(np.asarray(values), 6)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])
