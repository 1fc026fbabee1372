"""The terms of a micro-batch: surrogate, leash and bonus of each task, normalised over the whole update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead.objective import kl as kl_estimators
from levelhead.objective import losses
from levelhead.objective.controllers import ControllerState, make
from levelhead.objective.terms import Term, scalar_loss
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo
from levelhead.training.batch import Sample

ON_POLICY = "on_policy"


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


class Objective:
    """Builds terms, and holds the coefficients that move while training.

    Args:
        recipe: The ``grpo`` section.
        weights: Weight of each task.
        kl: KL coefficient of each task, ``None`` for the recipe's.
    """

    def __init__(self, recipe: Grpo, weights: Mapping[str, float], kl: Mapping[str, float | None]) -> None:
        self.recipe = recipe
        total = sum(weights.values())
        self._weights = {task: weight / total for task, weight in weights.items()}
        self._kl = {task: make(**recipe.kl.settings(coef)) for task, coef in kl.items()}
        self._entropy = make(**recipe.entropy.settings())
        self._kl_states = {task: controller.begin() for task, controller in self._kl.items()}
        self._entropy_state = self._entropy.begin()
        self.sums: dict[str, float] = {}

    @property
    def needs_reference(self) -> bool:
        """Whether any task is, or can come to be, on a leash."""
        moves = self.recipe.kl.controller.kind != "fixed"
        return any(state.coef > 0 for state in self._kl_states.values()) or (moves and self.recipe.kl.coef > 0)

    def coefficients(self) -> dict[str, float]:
        """The coefficients in force, as metrics."""
        values = {f"kl_coef/{task}": s.coef for task, s in self._kl_states.items() if self.needs_reference}
        return values | {"entropy_coef": self._entropy_state.coef}

    def state(self) -> dict[str, dict[str, float]]:
        """State of the controllers, as JSON."""
        states = {f"kl/{task}": state.to_json() for task, state in self._kl_states.items()}
        return states | {"entropy": self._entropy_state.to_json()}

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Restore :meth:`state`."""
        self._kl_states = {task: ControllerState.from_json(state[f"kl/{task}"]) for task in self._kl_states}
        self._entropy_state = ControllerState.from_json(state["entropy"])

    def control(self, values: Mapping[str, float]) -> None:
        """Let the controllers see what was measured."""
        for task, controller in self._kl.items():
            if f"kl/{task}" in values:
                self._kl_states[task] = controller.step(self._kl_states[task], values[f"kl/{task}"])
        if "entropy" in values:
            self._entropy_state = self._entropy.step(self._entropy_state, values["entropy"])

    def computes(self, sample: Sample) -> bool:
        """Whether a sample is worth a forward pass: its group has contrast, or a leash or bonus needs its tokens."""
        return sample.live or self._kl_states[sample.task].coef > 0 or self._entropy_state.coef > 0

    def shares(self, samples: Sequence[Sample]) -> dict[str, Share]:
        """What each task is divided by in this update; groups without contrast count, though they are not computed."""
        self.sums = {}
        mode = self.recipe.loss.aggregation
        shares: dict[str, Share] = {}
        for task, weight in self._weights.items():
            members = [s for s in samples if s.task == task]
            counted = [s for s in members if not (self.recipe.mask_truncated and s.truncated)]
            tokens = sum(s.weight * len(s.logprobs) for s in counted)
            sequences = sum(s.weight for s in counted)
            denominator = tokens if mode == "token_mean" else sequences
            computed = sum(s.weight * len(s.logprobs) for s in members if self.computes(s))
            if members:
                shares[task] = Share(weight, max(denominator, 1e-9), max(computed, 1e-9))
        present = sum(share.weight for share in shares.values())
        return {t: Share(s.weight / present, s.denominator, s.tokens) for t, s in shares.items()}

    def terms(
        self, policy: Policy, micro: MicroBatch, samples: Sequence[Sample], shares: Mapping[str, Share], old: str
    ) -> list[Term]:
        """Score a micro-batch and return its terms.

        Args:
            policy: With gradient.
            micro: Packed from ``samples``.
            samples: All samples of the update.
            shares: From :meth:`shares`.
            old: ``on_policy`` where the weights are those that drew the samples (the old log-probabilities are then
                the new ones), else ``sampler``: what the sampler recorded.
        """
        members = [samples[i] for i in micro.indices]
        temperature = self.recipe.sampling.temperature or 1.0
        stats = policy.score(micro, temperature)
        logp_nt, entropy_nt = micro.pad(stats.logp), micro.pad(stats.entropy)
        mask_nt = micro.mask().to(logp_nt.device)
        drawn_nt = _pad([s.logprobs for s in members]).to(logp_nt.device)
        old_nt = logp_nt.detach() if old == ON_POLICY else drawn_nt
        self._note_mismatch(logp_nt, drawn_nt, mask_nt)
        reference_nt = None
        if any(self._kl_states[s.task].coef > 0 for s in members) and policy.keeps_reference:
            reference_nt = micro.pad(policy.reference_logp(micro, temperature))
        terms: list[Term] = []
        for task, share in shares.items():
            rows = [r for r, s in enumerate(members) if s.task == task]
            if not rows:
                continue
            pick = torch.tensor(rows, device=logp_nt.device)
            weight_n1 = torch.tensor([[members[r].weight] for r in rows], device=logp_nt.device)
            chosen = [members[r] for r in rows]
            picked = (logp_nt[pick], old_nt[pick], mask_nt[pick])
            terms += self._policy_term(chosen, *picked, weight_n1, share, task)
            mean_nt = mask_nt[pick] * weight_n1 / share.tokens
            if reference_nt is not None:
                terms.append(self._kl_term(logp_nt[pick], reference_nt[pick], old_nt[pick], mean_nt, share, task))
            entropy = (entropy_nt[pick] * mean_nt).sum()
            self._add(f"entropy/{task}", float(entropy.detach()))
            terms.append(Term("entropy", entropy, "maximize", self._entropy_state.coef * share.weight, task))
        self._add("loss", float(scalar_loss(terms).detach()))
        return terms

    def _policy_term(
        self,
        samples: Sequence[Sample],
        logp_nt: Tensor,
        old_nt: Tensor,
        mask_nt: Tensor,
        weight_n1: Tensor,
        share: Share,
        task: str,
    ) -> list[Term]:
        recipe = self.recipe.loss
        kept_n = torch.tensor(
            [s.live and not (self.recipe.mask_truncated and s.truncated) for s in samples], device=logp_nt.device
        )
        mask_nt = mask_nt * kept_n[:, None]
        if not bool(kept_n.any()):
            return []
        loss = losses.policy_loss(
            recipe.kind,
            logp_nt,
            old_nt,
            torch.tensor([s.advantage for s in samples], device=logp_nt.device, dtype=logp_nt.dtype),
            mask_nt,
            clip_low=recipe.clip_low,
            clip_high=recipe.clip_high,
            dual_clip=recipe.dual_clip,
            weight_nt=weight_n1.expand_as(logp_nt),
            tau_pos=recipe.tau_pos,
            tau_neg=recipe.tau_neg,
            cov_fraction=recipe.cov_fraction,
            cov_low=recipe.cov_low,
            cov_high=recipe.cov_high,
            cov_kl=recipe.cov_kl,
        )
        value = losses.aggregate(
            recipe.aggregation,
            loss.surrogate_nt,
            mask_nt,
            fixed_length=recipe.fixed_length or self.recipe.sampling.max_new_tokens,
            denominator=share.denominator,
        )
        tokens = float(mask_nt.sum())
        for name, stat in loss.stats.items():
            if name.endswith("mean"):
                self._add(f"{name}|sum", float(stat) * tokens)
                self._add(f"{name}|count", tokens)
        return [Term("policy", value, "maximize", share.weight, task)]

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
        self._add(f"kl/{task}", float(value.detach()))
        return Term("kl", value, "minimize", self._kl_states[task].coef * share.weight, task)

    def values(self, shares: Mapping[str, Share]) -> dict[str, float]:
        """Metrics of the update whose terms have been built."""
        found = self.sums
        values: dict[str, float] = {}
        for kind in ("entropy", "kl"):
            parts = {task: found[f"{kind}/{task}"] for task in shares if f"{kind}/{task}" in found}
            if parts:
                total = sum(shares[task].weight for task in parts)
                values[kind] = sum(shares[task].weight * value for task, value in parts.items()) / total
                values |= {f"{kind}/{task}": value for task, value in parts.items()}
        for name in [key.removesuffix("|sum") for key in found if key.endswith("|sum")]:
            values[name] = found[f"{name}|sum"] / max(found[f"{name}|count"], 1.0)
        if "mismatch|max" in found:
            values["sampling/sampling_logp_difference/max"] = found["mismatch|max"]
        values["loss"] = found.get("loss", 0.0)
        return values

    def _note_mismatch(self, logp_nt: Tensor, drawn_nt: Tensor, mask_nt: Tensor) -> None:
        gap_nt = (logp_nt.detach() - drawn_nt).abs() * mask_nt
        self._add("sampling/sampling_logp_difference/mean|sum", float(gap_nt.sum()))
        self._add("sampling/sampling_logp_difference/mean|count", float(mask_nt.sum()))
        self.sums["mismatch|max"] = max(self.sums.get("mismatch|max", 0.0), float(gap_nt.max()))

    def _add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value


def _pad(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
