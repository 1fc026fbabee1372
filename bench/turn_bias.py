"""Bias and noise of credit by turn, by enumeration of a decision process whose true gradient is known.

    PYTHONPATH=tests python bench/turn_bias.py

Prints the table of docs/experiments/turns.md: for each estimator the expected gradient over every group of three
episodes against the true one, and the noise of one group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from levelhead.objective.advantages import ADVANTAGES, compute
from oracle.decision_process import Floats, Groups, gradients, groups, true_gradient

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("rloo", {}),
    ("grpo", {}),
    ("return_to_go", {"baseline": "episode"}),
    ("return_to_go", {"baseline": "turn"}),
    ("return_to_go", {"baseline": "state"}),
    ("return_to_go", {"baseline": "state", "discount": 0.9}),
    ("loo_gae", {"baseline": "state", "trace": 0.9}),
    ("loo_gae", {"baseline": "turn", "trace": 0.9}),
    ("loo_gae", {"baseline": "turn", "trace": 0.0}),
    ("mt_grpo", {}),
    ("gigpo", {"discount": 1.0}),
]


def turn_advantages(every: Groups, kind: str, settings: dict[str, Any]) -> Floats:
    """Advantage of each turn of each group; of each rollout, at all its turns, where there is one for all."""
    by_turn = {name: getattr(every, name) for name in ("turn_rewards_gkn", "turns_gkn", "states_gkn")}
    extras = by_turn if "turns_gkn" in ADVANTAGES[kind].needs else {}
    made = compute(kind, every.rewards_gk, **extras, **settings)
    return np.asarray(made.values_gk[:, :, None] * every.turns_gkn if made.turns_gkn is None else made.turns_gkn)


def accumulated(every: Groups) -> Floats:
    """Rewards less the mean of those that have such a turn, added up from each turn on: a baseline for each turn."""
    paid = every.turn_rewards_gkn.copy()
    last = every.turns_gkn - np.concatenate([every.turns_gkn[:, :, 1:], 0 * every.turns_gkn[:, :, :1]], axis=2)
    paid += last * (every.rewards_gk - paid.sum(axis=2))[:, :, None]
    centred = paid - paid.sum(axis=1, keepdims=True) / np.maximum(every.turns_gkn.sum(axis=1, keepdims=True), 1)
    return np.asarray((centred * every.turns_gkn)[:, :, ::-1].cumsum(axis=2)[:, :, ::-1])


def measure(every: Groups, turns_gkn: Floats, *, mean_of_turns: bool) -> tuple[float, float, float]:
    """Return cosine of expected and true gradient, relative bias at the best scale, and noise over signal."""
    rows = gradients(every, turns_gkn, mean_of_turns=mean_of_turns).reshape(len(every.members), -1)
    true = true_gradient().ravel()
    expected = every.probabilities_g @ rows
    scale = expected @ true / (true @ true)
    variance = every.probabilities_g @ ((rows - expected) ** 2).sum(axis=1)
    cosine = expected @ true / np.sqrt((expected @ expected) * (true @ true))
    bias = np.linalg.norm(expected - scale * true) / np.linalg.norm(scale * true)
    return float(cosine), float(bias), float(np.sqrt(variance) / np.linalg.norm(expected))


def main() -> None:
    """Print the table."""
    every = groups(3)
    print("| estimator | settings | turns | cosine | bias | noise |\n|---|---|---|---|---|---|")
    rows = [(f"`{kind}`", settings, turn_advantages(every, kind, settings)) for kind, settings in ROWS]
    for label, settings, made in [*rows, ("rewards centred by turn, then added up", {}, accumulated(every))]:
        for mean_of_turns in (False, True):
            cosine, bias, noise = measure(every, made, mean_of_turns=mean_of_turns)
            words = ", ".join(f"{key}: {value}" for key, value in settings.items())
            turns = "mean" if mean_of_turns else "sum"
            print(f"| {label} | {words} | {turns} | {cosine:.4f} | {100 * bias:.1f}% | {noise:.2f} |")


if __name__ == "__main__":
    main()
