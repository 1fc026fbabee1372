"""How fast credit by turn learns, on a chain of turns with a table of logits as the policy, or in a browser.

    python bench/turn_learning.py
    python bench/turn_learning.py --browser FOLDER --seeds 0 1 2 3 4

Eight turns with four actions each, one of them right, the same for all seeds; steps of equal length along the
gradient of four groups of four.  ``paid``: each right turn earns an eighth when it is taken.  ``delayed``: the episode
is paid the same total at its end.  Prints the steps until the mean reward reaches 0.9, mean and range over five seeds.

With ``--browser`` the recipe ``browser-tiny`` is trained for twenty steps, once for each estimator and seed, into
FOLDER, where a run that is there is not made again; pages pay at an episode's end.  Prints the success on held-out
prompts before GRPO and after every ten of its steps, mean and range over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelhead import train
from levelhead.objective.advantages import ADVANTAGES, compute
from levelhead.recipe.load import load

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "browser-tiny.yaml"
Floats = NDArray[np.float64]
TURNS, ACTIONS, GROUP, GROUPS, RATE, MOST = 8, 4, 4, 4, 0.1, 2000
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("rloo", {}),
    ("return_to_go", {"baseline": "state"}),
    ("loo_gae", {"baseline": "state", "trace": 0.5}),
    ("loo_gae", {"baseline": "state", "trace": 0.0}),
    ("gigpo", {}),
    ("mt_grpo", {}),
    ("grpo", {}),
]


def steps_to_learn(kind: str, settings: dict[str, Any], *, paid: bool, seed: int) -> int:
    """Return the first step at which the expected reward is at least 0.9; the most where it never is."""
    rng, logits = np.random.default_rng(seed), np.zeros((TURNS, ACTIONS))
    shape = (GROUPS, GROUP, TURNS)
    states = np.broadcast_to(np.arange(TURNS, dtype=np.float64), shape)
    for step in range(MOST):
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        if chances[:, 0].mean() >= 0.9:
            return step
        actions = (rng.random((*shape, 1)) > chances.cumsum(axis=1)).sum(axis=3).clip(0, ACTIONS - 1)
        earned = (actions == 0) / TURNS
        arrays = {"turn_rewards_gkn": earned * paid, "turns_gkn": np.ones(shape), "states_gkn": states}
        extras = arrays if "turns_gkn" in ADVANTAGES[kind].needs else {}
        made = compute(kind, earned.sum(axis=2).round(9), **extras, **settings)
        by_turn = np.broadcast_to(made.values_gk[:, :, None], shape) if made.turns_gkn is None else made.turns_gkn
        slopes = np.eye(ACTIONS)[actions] - chances
        gradient = (by_turn[..., None] * slopes).mean(axis=(0, 1))
        logits = logits + RATE * gradient / max(float(np.linalg.norm(gradient)), 1e-9)
    return MOST


IN_BROWSER = ("grpo", "return_to_go")
STEPS, EVERY, ITEMS = 20, 10, 180
"""Steps of GRPO, and between evaluations on so many held-out prompts."""


def in_browser(folder: Path, kind: str, seed: int) -> list[float]:
    """Train in a browser, unless that was done; returns the held-out success before GRPO and on its way."""
    out = folder / f"{kind}-{seed}"
    if not (out / "summary.json").is_file():
        sizes = [
            f"grpo.steps={STEPS}",
            f"eval.every={EVERY}",
            f"eval.items={ITEMS}",
            f"eval.final_items={ITEMS}",
            "eval.constant=false",
        ]
        train(load(RECIPE, [f"seed={seed}", f"grpo.advantage.kind={kind}", *sizes]), out=out, check=False)
    rows = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    evaluations = [row for row in rows if row["stage"] == "eval" and row.get("eval_stage") != "start"]
    scores = {row["step"] * (row.get("eval_stage") != "sft"): row["eval/browser/score"] for row in evaluations}
    return [scores[step] for step in sorted(scores)]


def browser_table(folder: Path, seeds: Sequence[int]) -> None:
    """Print the table of the runs in a browser."""
    for kind in IN_BROWSER:
        runs = list(zip(*(in_browser(folder, kind, seed) for seed in seeds), strict=True))
        cells = [f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})" for scores in runs]
        print(f"| `{kind}` | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    arguments = parser.parse_args()
    if arguments.browser is not None:
        browser_table(arguments.browser, arguments.seeds)
        return
    print("| estimator | settings | paid each turn | paid at the end |\n|---|---|---|---|")
    for kind, settings in ROWS:
        cells = []
        for paid in (True, False):
            steps = [steps_to_learn(kind, settings, paid=paid, seed=seed) for seed in range(5)]
            cells.append(f"{np.mean(steps):.0f} ({min(steps)} to {max(steps)})")
        words = ", ".join(f"{key}: {value}" for key, value in settings.items())
        print(f"| `{kind}` | {words} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
