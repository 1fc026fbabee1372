"""The terms of a micro-batch: surrogate, KL penalty and entropy bonus of a task, normalised over the whole update."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective import kl as kl_estimators
from levelhead.objective import losses
from levelhead.objective.controllers import Controller, ControllerState
from levelhead.objective.masks import combine_weights
from levelhead.objective.terms import Term, scalar_loss
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import tolerance
from levelhead.recipe.controllers import KlController, make_controller
from levelhead.recipe.training import Grpo
from levelhead.records import Knobs
from levelhead.training.batch import Sample


class NonFiniteError(ArithmeticError):
    """A log-probability is not finite: the forward pass broke, and there is no gradient to be had."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one task brings to an update.

    Attributes:
        weight: Of its objective in the sum; the shares of a recipe add up to 1.
        denominator: What its surrogate is divided by, over all micro-batches.
        tokens: Its completion tokens, for the means of KL and entropy.
    """

    weight: float
    denominator: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the micro-batches of one update have in common.

    Attributes:
        samples: Those worth a forward pass, by task.
        shares: Of each task that is present.
        temperature: At which the samples were drawn; positive.
        on_policy: Whether the policy at hand is the old one: the old log-probabilities are the new ones.
        generator: For losses that draw.
        behind: Whether older weights drew the samples, so that the sampler's log-probabilities are not the new ones.
    """

    samples: Mapping[str, list[Sample]]
    shares: Mapping[str, Share]
    temperature: float
    on_policy: bool
    generator: torch.Generator
    behind: bool = False


class Objective:
    """Builds terms, and holds the coefficients that move while training.

    Args:
        recipe: The ``grpo`` section.
        weights: Weight of each task.
        kl: KL coefficient of each task, ``None`` for the recipe's; in the recipe's order.
        controllers: What moves the KL coefficient of each task; the recipe's where none is given.

    Raises:
        ValueError: Settings of a controller do not fit each other.
        InputError: A controller of the user's own is not there, or does not fit.
    """

    def __init__(
        self,
        recipe: Grpo,
        weights: Mapping[str, float],
        kl: Mapping[str, float | None],
        controllers: Mapping[str, KlController | None] | None = None,
    ) -> None:
        self.recipe = recipe
        self.loss = recipe.loss.make()
        total = sum(weights.values())
        self._weights = {task: weight / total for task, weight in weights.items()}
        own = controllers or {}
        self._kl: dict[str, Controller] = {}
        self._kl_states: dict[str, ControllerState] = {}
        for index, (task, coef) in enumerate(kl.items()):
            key = f"tasks.{index}.kl_controller" if own.get(task) else "grpo.kl.controller"
            start, section = recipe.kl.of_task(coef, own.get(task))
            self._kl[task] = make_controller(section, "kl", key)
            self._kl_states[task] = _begun(self._kl[task], start, f"the KL controller of task {task!r}")
        self._entropy = make_controller(recipe.entropy.controller, "entropy", "grpo.entropy.controller")
        self._entropy_state = _begun(self._entropy, recipe.entropy.coef, "the entropy controller")
        self.sums: dict[str, float] = {}
        self.knobs = Knobs()
        self._references: dict[int, tuple[Sample, Tensor]] = {}

    @property
    def needs_reference(self) -> bool:
        """Whether any task is, or can come to be, under a KL penalty."""
        return any(self._has_kl_penalty(task) for task in self._kl)

    def _has_kl_penalty(self, task: str) -> bool:
        """Whether a task's KL must be known: it costs something, or a controller watches it."""
        return self._kl_states[task].coef > 0 or self._kl[task].moves

    @property
    def kl_coefs(self) -> dict[str, float]:
        """KL coefficient of each task in force."""
        return {task: state.coef * self.knobs.kl for task, state in self._kl_states.items()}

    @property
    def entropy_coef(self) -> float:
        """Entropy coefficient in force."""
        return self._entropy_state.coef * self.knobs.entropy + self.knobs.entropy_bonus

    def coefficients(self) -> dict[str, float]:
        """The coefficients in force, as metrics."""
        values = {metric.KL_COEF.of(task): coef for task, coef in self.kl_coefs.items() if self.needs_reference}
        return values | {metric.ENTROPY_COEF: self.entropy_coef}

    def state(self) -> dict[str, dict[str, Any]]:
        """State of the controllers, as JSON."""
        states = {f"kl/{task}": state.to_json() for task, state in self._kl_states.items()}
        return states | {"entropy": self._entropy_state.to_json()}

    def load_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore :meth:`state`."""
        self._kl_states = {task: ControllerState.from_json(state[f"kl/{task}"]) for task in self._kl_states}
        self._entropy_state = ControllerState.from_json(state["entropy"])

    def control(self, values: Mapping[str, float]) -> None:
        """Let the controllers see what was measured; what is not finite tells them nothing."""
        seen = {name: value for name, value in values.items() if math.isfinite(value)}
        for task, controller in self._kl.items():
            if (name := metric.KL_BY_TASK.of(task)) in seen:
                self._kl_states[task] = controller.step(self._kl_states[task], seen[name])
        if metric.ENTROPY in seen:
            self._entropy_state = self._entropy.step(self._entropy_state, seen[metric.ENTROPY])

    def computes(self, sample: Sample) -> bool:
        """Whether a sample is worth a forward pass: its group has contrast, or KL or entropy need its tokens."""
        return sample.live or self._kl_term_of(sample.task) or self.entropy_coef > 0

    def _kl_term_of(self, task: str) -> bool:
        return self.recipe.kl.where == "loss" and self._has_kl_penalty(task)

    def plan(
        self, samples: Sequence[Sample], *, temperature: float, on_policy: bool, seed: int, behind: bool = False
    ) -> Plan:
        """Lay out an update; groups without contrast count in the means, though they are not computed.

        Args:
            samples: All samples of the update.
            temperature: At which they were drawn; 0 is scored at 1.
            on_policy: Whether the policy at hand is the old one.
            seed: For losses that draw.
            behind: Whether older weights drew them.
        """
        self.sums = {}
        shares: dict[str, Share] = {}
        computed: dict[str, list[Sample]] = {}
        for task, weight in self._weights.items():
            members = [s for s in samples if s.task == task]
            counted = [s for s in members if not (self.recipe.mask_truncated and s.truncated)]
            tokens = sum(s.weight * len(s.logprobs) for s in counted)
            sequences = sum(s.weight for s in counted)
            denominator = tokens if self.recipe.loss.aggregation == "token_mean" else sequences
            chosen = [s for s in members if self.computes(s)]
            seen = sum(s.weight * len(s.logprobs) for s in chosen)
            if members:
                shares[task] = Share(weight, max(denominator, 1e-9), max(seen, 1e-9))
            if chosen:
                computed[task] = chosen
        present = sum(share.weight for share in shares.values())
        shares = {t: Share(s.weight / present, s.denominator, s.tokens) for t, s in shares.items()}
        generator = torch.Generator().manual_seed(seed)
        return Plan(computed, shares, temperature or 1.0, on_policy, generator, behind)

    def terms(self, policy: Policy, micro: MicroBatch, task: str, plan: Plan) -> list[Term]:
        """Score a micro-batch of one task and return its terms.

        Args:
            policy: With gradient.
            micro: Packed from ``plan.samples[task]``.
            task: Its task.
            plan: Of the update.

        Raises:
            NonFiniteError: The policy gives a token a log-probability that is not finite.
        """
        members = [plan.samples[task][i] for i in micro.indices]
        share = plan.shares[task]
        stats = policy.score(micro, plan.temperature)
        logp_nt, entropy_nt = micro.pad(stats.logp), micro.pad(stats.entropy)
        if not bool(torch.isfinite(stats.logp).all()):
            raise NonFiniteError("a log-probability is not finite")
        mask_nt = micro.mask().to(logp_nt.device)
        drawn_nt = _pad([s.logprobs for s in members], logp_nt)
        self._note_mismatch(logp_nt, drawn_nt, mask_nt)
        if plan.on_policy and not plan.behind:
            self.sums["rounding|max"] = tolerance(policy).mean
        old_nt = logp_nt.detach()
        if not plan.on_policy:
            old_nt = _pad([s.old_logprobs for s in members], logp_nt)
        weight_n1 = torch.tensor([[s.weight] for s in members], device=logp_nt.device)
        mean_nt = mask_nt * weight_n1 / share.tokens
        terms = self._policy_term(members, logp_nt, old_nt, mask_nt, weight_n1, task, plan)
        if self._kl_term_of(task) and policy.keeps_reference:
            reference_nt = micro.pad(self._reference(policy, micro, members, plan.temperature))
            terms.append(self._kl_term(logp_nt, reference_nt, old_nt, mean_nt, share, task))
        entropy = (entropy_nt * mean_nt).sum()
        self._add(metric.ENTROPY_BY_TASK.of(task), float(entropy.detach()))
        terms.append(Term("entropy", entropy, "maximize", self.entropy_coef * share.weight, task))
        self._add(metric.LOSS, float(scalar_loss(terms).detach()))
        return terms

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Build terms inside that the update at hand shall not know of."""
        sums, references = self.sums, self._references
        self._references = {}
        try:
            yield
        finally:
            self.sums, self._references = sums, references

    def begin(self) -> None:
        """Forget what the reference said of the last batch."""
        self._references = {}

    def _reference(self, policy: Policy, micro: MicroBatch, members: Sequence[Sample], temperature: float) -> Tensor:
        """(m,) log-probabilities under the reference; later epochs of a batch get those of the first."""
        known = [self._references[id(s)][1] for s in members if id(s) in self._references]
        if len(known) == len(members):
            return torch.cat(known)
        found = policy.reference_logp(micro, temperature)
        if self.recipe.epochs > 1:
            parts = found.split(list(micro.lengths))
            self._references |= {id(s): (s, part) for s, part in zip(members, parts, strict=True)}
        return found

    def _policy_term(
        self,
        samples: Sequence[Sample],
        logp_nt: Tensor,
        old_nt: Tensor,
        mask_nt: Tensor,
        weight_n1: Tensor,
        task: str,
        plan: Plan,
    ) -> list[Term]:
        recipe, share = self.recipe.loss, plan.shares[task]
        kept = [s.live and not (self.recipe.mask_truncated and s.truncated) for s in samples]
        if not any(kept):
            return []
        mask_nt = mask_nt * torch.tensor(kept, device=logp_nt.device)[:, None]
        loss = losses.policy_loss(
            self.loss.with_clip_scaled(self.knobs.clip),
            logp_nt,
            old_nt,
            _advantages(samples, logp_nt),
            mask_nt,
            weight_nt=self._weights_of_tokens(samples, old_nt, mask_nt, weight_n1),
            generator=plan.generator,
        )
        value = losses.aggregate(
            recipe.aggregation,
            loss.surrogate_nt,
            mask_nt,
            fixed_length=recipe.fixed_length or self.recipe.sampling.max_new_tokens,
            denominator=share.denominator,
        )
        self._note(loss.stats, mask_nt)
        return [Term("policy", value, "maximize", share.weight, task)]

    def _weights_of_tokens(
        self, samples: Sequence[Sample], old_nt: Tensor, mask_nt: Tensor, weight_n1: Tensor
    ) -> Tensor:
        """Factor of each token's surrogate: of its episode and stratum, of the sampler's correction, of uncertainty."""
        recipe = self.recipe.loss
        balance_n1 = torch.tensor([[s.balance] for s in samples], device=old_nt.device)
        weight_nt = (weight_n1 * balance_n1).expand_as(old_nt)
        correction_nt = keep_nt = None
        if recipe.importance is not None:
            behaviour_nt = _pad([s.behaviour for s in samples], old_nt)
            correction = losses.importance_weights(
                recipe.importance,
                old_nt,
                behaviour_nt,
                mask_nt,
                low=recipe.importance_low,
                high=recipe.importance_high,
            )
            correction_nt = correction.weight_nt
            self._note(correction.stats, mask_nt)
        if any(s.keep is not None for s in samples):
            keep_nt = _pad([s.keep or () for s in samples], old_nt)
        combined = combine_weights(weight_nt, correction_nt, keep_nt)
        return weight_nt if combined is None else combined

    def _kl_term(
        self, logp_nt: Tensor, reference_nt: Tensor, old_nt: Tensor, mean_nt: Tensor, share: Share, task: str
    ) -> Term:
        recipe = self.recipe.kl
        kl_nt = kl_estimators.estimate(
            recipe.estimator,
            logp_nt,
            reference_nt,
            gradient=recipe.gradient,
            old_logp_nt=old_nt if recipe.gradient == "importance" else None,
        )
        value = (kl_nt * mean_nt).sum()
        self._add(metric.KL_BY_TASK.of(task), float(value.detach()))
        self._add(f"reference/{task}", float(((logp_nt.detach() - reference_nt).abs() * mean_nt).sum()))
        return Term("kl", value, "minimize", self.kl_coefs[task] * share.weight, task)

    def values(self, shares: Mapping[str, Share]) -> dict[str, float]:
        """Metrics of the update whose terms have been built."""
        found = self.sums
        values: dict[str, float] = {}
        for whole, by_task in ((metric.ENTROPY, metric.ENTROPY_BY_TASK), (metric.KL, metric.KL_BY_TASK)):
            parts = {task: found[by_task.of(task)] for task in shares if by_task.of(task) in found}
            if parts:
                total = sum(shares[task].weight for task in parts)
                values[whole] = sum(shares[task].weight * value for task, value in parts.items()) / total
                values |= {by_task.of(task): value for task, value in parts.items()}
        for name in [key.removesuffix("|sum") for key in found if key.endswith("|sum")]:
            values[name] = found[f"{name}|sum"] / max(found[f"{name}|count"], 1.0)
        for end in ("|max", "|min"):
            values |= {key.removesuffix(end): value for key, value in found.items() if key.endswith(end)}
        if "rounding" in values:
            beyond = values[metric.LOGP_DIFFERENCE_MEAN] - values.pop("rounding")
            values[metric.BEYOND_ROUNDING] = max(beyond, 0.0)
        values[metric.LOSS] = found.get(metric.LOSS, 0.0)
        return values

    def _note(self, stats: Mapping[str, Tensor], mask_nt: Tensor) -> None:
        """Gather statistics: the largest of a ``/max``, the smallest of a ``/min``, of others the mean over tokens."""
        tokens = float(mask_nt.sum())
        for name, stat in stats.items():
            value = float(stat)
            if name.endswith("/max"):
                self._most(name, value)
            elif name.endswith("/min"):
                self.sums[f"{name}|min"] = min(self.sums.get(f"{name}|min", math.inf), value)
            else:
                self._add(f"{name}|sum", value * tokens)
                self._add(f"{name}|count", tokens)

    def _note_mismatch(self, logp_nt: Tensor, drawn_nt: Tensor, mask_nt: Tensor) -> None:
        gap_nt = (logp_nt.detach() - drawn_nt).abs() * mask_nt
        self._add(f"{metric.LOGP_DIFFERENCE_MEAN}|sum", float(gap_nt.sum()))
        self._add(f"{metric.LOGP_DIFFERENCE_MEAN}|count", float(mask_nt.sum()))
        self._most(metric.LOGP_DIFFERENCE_MAX, float(gap_nt.max()))

    def _most(self, name: str, value: float) -> None:
        self.sums[f"{name}|max"] = max(self.sums.get(f"{name}|max", -math.inf), value)

    def _add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value


def _begun(controller: Controller, coef: float, label: str) -> ControllerState:
    try:
        return controller.begin(coef)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _pad(rows: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """Rows of numbers as (n, t), zero where a row is shorter than the longest."""
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=like.dtype) for row in rows], batch_first=True)
    return padded.to(like.device)


def _advantages(samples: Sequence[Sample], like: Tensor) -> Tensor:
    """One a sequence, or one a token where an estimator tells tokens apart."""
    if all(s.advantages is None for s in samples):
        return torch.tensor([s.advantage for s in samples], device=like.device, dtype=like.dtype)
    return _pad([s.advantages or (s.advantage,) * len(s.logprobs) for s in samples], like)
