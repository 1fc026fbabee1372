"""An update put together: who is learnt from, what means are over, what KL and bonus cost, and how both move.

The loss of an update is ``sum over tasks of w (- surrogate + beta KL - alpha entropy)``, where the weights w of the
tasks in it add up to 1.  A rollout of n turns counts 1/n a turn.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from levelhead.objective.controllers import Band, EntropyTarget, Fixed, Lagrangian
from levelhead.recipe.objective import Kl
from oracle import settings as every_key
from oracle.textbook.estimators import Matrix, estimate, mean
from oracle.textbook.records import Answer, Floats, Problem, Settings, Slopes, UnprovedError
from oracle.textbook.rewards import Moments, charged, shaped
from oracle.textbook.surrogates import Rise, importance, rises
from oracle.textbook.turns import turn_share
from oracle.textbook.weights import TaskBalance


@dataclass(frozen=True, slots=True)
class Worth:
    """What a group's rollouts are worth.

    Attributes:
        values: Advantage of each.
        tokens: Of each token of each, where they differ.
        balance: What the group weighs among the strata of its task.
    """

    values: Sequence[float]
    tokens: Sequence[Floats] | None
    balance: float


@dataclass(slots=True)
class Book:
    """The arithmetic of a run, batch after batch.

    Attributes:
        settings: Its recipe.
        kl_coefs: KL coefficient of each task in force.
        entropy_coef: Coefficient of the bonus in force.
        moments: What running z-scores are taken of, by task.
        balance: What the tasks count for.
        kl_factor: On what the KL costs; 1 but for a gradient that is to be explained.
    """

    settings: Settings
    kl_factor: float = 1.0
    kl_coefs: dict[str, float] = field(init=False)
    entropy_coef: float = field(init=False)
    moments: dict[str, Moments] = field(init=False)
    balance: TaskBalance = field(init=False)
    _bonus: float = field(init=False)
    _measured: dict[str, list[float]] = field(init=False)
    _rewards: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        grpo = self.settings.grpo
        self.kl_coefs = {n: grpo.kl.coef if t.kl is None else t.kl for n, t in self.settings.tasks.items()}
        self.entropy_coef = self._bonus = grpo.entropy.coef
        self.moments = {name: Moments() for name in self.settings.tasks}
        self.balance = TaskBalance(self.settings)
        self._measured, self._rewards = defaultdict(list), {}

    def temperature(self, step: int) -> float:
        """Return the temperature of the batch of a step, counted from 1; a greedy one is scored at 1."""
        sampling, steps = self.settings.grpo.sampling, self.settings.grpo.steps
        if sampling.temperature_final is None:
            return sampling.temperature or 1.0
        done = min((step - 1) / max(steps - 1, 1), 1.0)
        share = done if sampling.temperature_schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
        return sampling.temperature + share * (sampling.temperature_final - sampling.temperature)

    def advantages(self, problems: Sequence[Problem]) -> list[Worth]:
        """Return what the rollouts of a batch are worth, and note what the reference charges them."""
        grpo = self.settings.grpo
        worth: dict[int, Worth] = {}
        for name, task in self.settings.tasks.items():
            members = [i for i, p in enumerate(problems) if p.task == name]
            if not members:
                continue
            attempts = [problems[i].attempts for i in members]
            rewards: Matrix = [[a.reward for a in group] for group in attempts]
            self._rewards[name] = mean([reward for group in rewards for reward in group])
            rewards = shaped(task.shaping, grpo.sampling.max_new_tokens, rewards, attempts, self.moments[name])
            if grpo.kl.where == "reward" and any(self._watched(n) for n in self.settings.tasks):
                self._measured[f"kl/{name}"].append(mean([float(d) for g in attempts for a in g for d in a.drift]))
                rewards = charged(rewards, attempts, self.kl_coefs[name] * self.kl_factor)
            made = estimate(every_key.advantage(grpo.advantage), rewards, attempts)
            strata = Counter(problems[i].stratum for i in members)
            for row, i in enumerate(members):
                share = len(members) / (len(strata) * strata[problems[i].stratum]) if task.balance else 1.0
                worth[i] = Worth(made.values[row], None if made.tokens is None else made.tokens[row], share)
        return [worth[i] for i in range(len(problems))]

    def slopes(
        self, answers: Sequence[Answer], entropies: Sequence[Floats], present: Collection[str] = ()
    ) -> list[Slopes]:
        """Return the derivatives of the loss of an update for each of its answers, and note what was measured.

        Args:
            answers: All of the update; those without a micro-batch count in means alone.
            entropies: (t,) entropy of each token, for the controller.
            present: Tasks of the update, where these are not all of its answers; nothing is noted then.
        """
        part, present = bool(present), set(present) or {a.task for a in answers}
        before = {name: list(values) for name, values in self._measured.items()}
        weights = self.balance.now
        total = sum(weight for n, weight in weights.items() if n in present)
        made: dict[int, Slopes] = {}
        entropy = 0.0
        for name in present:
            weight = weights[name] / total
            members = [i for i, a in enumerate(answers) if a.task == name]
            own = [answers[i] for i in members]
            made.update(zip(members, self._of_task(name, weight, own), strict=True))
            seen = [(a, h) for a, h in zip(own, (entropies[i] for i in members), strict=True) if a.micro >= 0]
            tokens = sum(a.length * self._turn(a) for a, _ in seen)
            entropy += weight * sum(float(h.sum()) * self._turn(a) for a, h in seen) / max(tokens, 1e-9)
        self._measured["entropy"].append(entropy)
        if part:
            self._measured = defaultdict(list, before)
        return [made[i] for i in range(len(answers))]

    def close(self) -> None:
        """Let the controllers see what the updates of a batch have measured, each as the mean over them."""
        measured = {name: mean(values) for name, values in self._measured.items()}
        self._measured = defaultdict(list)
        self.balance.see(self._rewards)
        self._rewards = {}
        for name in self.settings.tasks:
            if f"kl/{name}" in measured:
                self.kl_coefs[name] = self._moved(name, measured[f"kl/{name}"])
        controller = self.settings.grpo.entropy.controller
        if isinstance(controller, EntropyTarget) and "entropy" in measured:
            # He et al. 2025, Skywork-OR1, arXiv:2505.22312: off above the target, and a step up or down afterwards
            now = measured["entropy"]
            self.entropy_coef = self._bonus if now <= controller.target else 0.0
            step = (
                controller.delta if now < controller.target else -controller.delta if now > controller.target else 0.0
            )
            self._bonus = min(max(self._bonus + step, controller.coef_min), controller.coef_max)
        elif not isinstance(controller, Fixed | EntropyTarget):
            raise UnprovedError(f"grpo.entropy.controller.kind: {_kind(controller)}")

    def _controller(self, name: str) -> object:
        task = self.settings.tasks[name]
        shared = self.settings.grpo.kl.controller
        start = self.settings.grpo.kl.coef if task.kl is None else task.kl
        if task.controller is None and isinstance(shared, Band) and start == 0:
            return Fixed()
        return task.controller or shared

    def _watched(self, name: str) -> bool:
        """Whether a task has a KL: it costs something, or a controller may make it cost something."""
        return self.kl_coefs[name] > 0 or not isinstance(self._controller(name), Fixed)

    def _moved(self, name: str, measured: float) -> float:
        coef, controller = self.kl_coefs[name], self._controller(name)
        if isinstance(controller, Fixed):
            return coef
        if isinstance(controller, Band):  # Schulman et al. 2017, arXiv:1707.06347, section 4
            up, down = measured > controller.high, measured < controller.low
            moved = coef * controller.factor if up else coef / controller.factor if down else coef
        elif isinstance(controller, Lagrangian):  # dual ascent on KL <= target
            moved = coef + controller.eta * (measured - controller.target)
        else:
            raise UnprovedError(f"grpo.kl.controller.kind: {_kind(controller)}")
        return min(max(moved, controller.coef_min), controller.coef_max)

    def _of_task(self, name: str, weight: float, answers: Sequence[Answer]) -> list[Slopes]:
        grpo = self.settings.grpo
        counted = [a for a in answers if not (grpo.mask_truncated and a.truncated)]
        by_token = grpo.loss.aggregation == "token_mean"
        divisor = sum(a.length * self._turn(a) if by_token else 1 / a.turns for a in counted)
        surrogate = self._surrogate(answers, max(divisor, 1e-9))
        seen = [a for a in answers if a.micro >= 0]
        tokens = sum(a.length * self._turn(a) for a in seen)
        penalised = grpo.kl.where == "loss" and self._watched(name)
        made, kl = [], 0.0
        for answer, rise in zip(answers, surrogate, strict=True):
            share = (self._turn(answer) / tokens if answer.micro >= 0 else 0.0) * np.ones(answer.length)
            value, slope = kl_estimate(grpo.kl, answer) if penalised else (np.zeros(answer.length),) * 2
            kl += float((value * share).sum())
            made.append(
                Slopes(
                    -weight * rise.slope,
                    weight * self.kl_coefs[name] * self.kl_factor * slope * share,
                    -weight * self.entropy_coef * share,
                    rise.side,
                    rise.optional,
                    -weight * rise.other,
                    rise.special,
                )
            )
        if penalised:
            self._measured[f"kl/{name}"].append(kl)
        return made

    def _surrogate(self, answers: Sequence[Answer], divisor: float) -> list[Rise]:
        """Slope of the surrogate of the answers of a task; micro-batches matter to losses by covariance alone."""
        grpo = self.settings.grpo
        made = [_nothing(a) for a in answers]
        learnt: dict[int, list[int]] = defaultdict(list)
        live = {a.problem for a in answers if (np.abs(a.advantage) > 0).any()}
        for i, answer in enumerate(answers):
            if answer.problem in live and not (grpo.mask_truncated and answer.truncated):
                learnt[answer.micro].append(i)
        for members in learnt.values():
            own = [answers[i] for i in members]
            shares = [self._share(a, divisor) for a in own]
            for i, rise in zip(members, rises(every_key.loss(grpo.loss), own, shares), strict=True):
                made[i] = rise
        return made

    def _turn(self, answer: Answer) -> float:
        return turn_share(self.settings, answer.turns)

    def _share(self, answer: Answer, divisor: float) -> Floats:
        """What one unit of a token's surrogate adds to the objective of its task, shape (t,)."""
        loss = every_key.loss(self.settings.grpo.loss)
        share = importance(loss, answer) * answer.learns * answer.balance * self._turn(answer) / divisor
        if loss.aggregation == "token_mean":  # Yu et al. 2025, DAPO: a mean over all tokens
            return share
        if loss.aggregation == "sequence_mean":  # Shao et al. 2024, GRPO: a mean of the answers' means
            return share / answer.length
        if loss.aggregation == "fixed_length":  # Liu et al. 2025, Dr. GRPO: over a length that no answer changes
            return share / (loss.fixed_length or self.settings.grpo.sampling.max_new_tokens)
        raise UnprovedError(f"grpo.loss.aggregation: {loss.aggregation}")


def _kind(controller: object) -> str:
    return str(getattr(controller, "kind", type(controller).__name__))


def _nothing(answer: Answer) -> Rise:
    zeros = np.zeros(answer.length)
    return Rise(zeros, zeros, zeros > 0, zeros)


def kl_estimate(settings: Kl, answer: Answer) -> tuple[Floats, Floats]:
    """Return an answer's KL estimates and their slopes along the log-probabilities, shape (t,) each.

    Schulman 2020, "Approximating KL divergence", with d the log-ratio of policy to reference: k1 = d, k2 = d^2 / 2,
    k3 = exp(-d) - 1 + d.  ``k2`` takes k2's slope whatever the value is (Liu et al. 2025); ``importance``
    differentiates the estimate times the ratio (DeepSeek-V3.2).

    Raises:
        UnprovedError: No formula is written down here for this estimator or gradient.
    """
    gap = answer.new - answer.reference
    values: Mapping[str, tuple[Floats, Floats]] = {
        "k1": (gap, np.ones(len(gap))),
        "k2": (gap**2 / 2, gap),
        "k3": (np.exp(-gap) - 1 + gap, 1 - np.exp(-gap)),
    }
    if settings.estimator not in values or settings.gradient not in ("plain", "k2", "importance"):
        raise UnprovedError(f"grpo.kl: estimator {settings.estimator}, gradient {settings.gradient}")
    value, slope = values[settings.estimator]
    if settings.gradient == "plain":
        return value, slope
    if settings.gradient == "k2":
        return value, gap
    ratio = np.exp(answer.new - answer.old)
    return value * ratio, ratio * (slope + value)


def entropy_threshold(fraction: float, entropies: Sequence[Floats]) -> float:
    """Return the entropy that a share of a batch's tokens reach (Wang et al. 2025, arXiv:2506.01939, "80/20")."""
    ordered = sorted((float(h) for row in entropies for h in row), reverse=True)
    return ordered[math.ceil(fraction * len(ordered)) - 1]
