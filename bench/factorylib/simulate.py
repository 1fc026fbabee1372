"""GRPO on a softmax policy whose gradients are exact in the logits, with every fault of a plan inside the training.

A policy is a table of logits: one for each prompt, position and token, plus one that all prompts share.  Answers are
sampled, paid, given advantages by the product's own estimators, and the clipped objective of the chosen loss (GRPO,
Shao et al. 2024; DAPO, Yu et al. 2025; Dr. GRPO, Liu et al. 2025; GSPO, Zheng et al. 2025; CISPO, MiniMax 2025) is
differentiated by hand: d log pi(y) / d logits = onehot(y) - pi.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorylib.plans import Plan
from factorylib.worlds import Answers, Floats, Ints, Prompts, make_prompts, pays
from levelhead.objective import advantages


@dataclass(slots=True)
class Batch:
    """Sampled answers with everything that the loss needs."""

    prompts: Ints
    answers: Answers
    sampled_logp: Floats
    old_logp: Floats
    paid: Floats
    true: Floats
    parts: dict[str, Floats]
    advantages: Floats
    cut: Floats


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class Trainer:
    """One run in progress."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.world = plan, plan.family
        self.rng = np.random.default_rng(plan.seed)
        self.prompts: Prompts = make_prompts(self.world, plan.prompts, plan.filler, self.rng)
        self.own = np.zeros_like(self.prompts.logits)
        self.shared = np.zeros(self.prompts.logits.shape[1:])
        noise = np.random.default_rng(plan.seed + 1).normal(0, 1, self.prompts.logits.shape)
        self.reference = log_softmax(self.prompts.logits + plan.wrong_reference * noise)
        self.past: list[Floats] = []
        self.moments = [np.zeros_like(a) for a in (self.own, self.shared, self.own, self.shared)]
        self.carried: list[Floats] | None = None
        self.updates = 0
        self.phrases = np.random.default_rng(plan.seed + 3).gamma(4.0, plan.token_scale / 4, self.world.vocab)
        self.spike = int(self.rng.integers(plan.steps)) if plan.harmless_spike else -1
        self.room = round(self.world.length * plan.room) or 1

    def logits(self, prompts: Ints) -> Floats:
        return self.prompts.logits[prompts] + self.own[prompts] + self.shared

    def faulty(self, step: int) -> bool:
        return step >= self.plan.begin * self.plan.steps

    def sampler(self, prompts: Ints, step: int) -> Floats:
        """Log-probabilities that the sampler draws from, ``(B, L, V)``."""
        plan = self.plan
        logits = self.logits(prompts)
        if self.faulty(step):
            if plan.never_synced and self.past:
                logits = self.past[0][prompts]
            elif plan.lag and len(self.past) > 1:
                logits = self.past[max(0, len(self.past) - 1 - plan.lag)][prompts]
            if plan.sampler_noise:
                wobble = np.random.default_rng(plan.seed + 2).normal(0, 1, self.own.shape)
                logits = logits + plan.sampler_noise * wobble[prompts]
            logits = logits / plan.sampler_temperature
            if plan.top_k:
                floor = np.sort(logits, -1)[..., -plan.top_k, None]
                logits = np.where(logits < floor, -30.0, logits)
            if plan.no_end and self.world.ends:
                logits = logits.copy()
                logits[..., 0] = -30.0
        return log_softmax(logits)

    def sample(self, prompts: Ints, step: int) -> tuple[Answers, Floats, Floats]:
        """Draw ``G`` answers for each prompt; returns them, their log-probabilities, and which were cut."""
        plan = self.plan
        logp = self.sampler(prompts, step)
        tokens = self._drawn(np.exp(logp))
        if plan.copies and self.faulty(step):
            same = self.rng.random(len(prompts)) < plan.copies
            tokens[same] = tokens[same][:, :1]
        if plan.sampler_temperature < 0.05:
            tokens = np.broadcast_to(logp.argmax(-1)[:, None], tokens.shape).copy()
        mask = np.ones(tokens.shape)
        cut = np.zeros(tokens.shape[:2])
        if self.world.ends:
            over = np.cumsum(tokens == 0, -1) - (tokens == 0)
            mask = (over == 0).astype(float)
            ended = (tokens == 0).any(-1)
            cut = 1.0 - ended
        if plan.room < 1:
            cut = np.maximum(cut, (mask[..., self.room :].sum(-1) > 0).astype(float))
            mask[..., self.room :] = 0
        answers = Answers(tokens, mask, self.prompts.targets[prompts], self.world.vocab)
        return answers, np.take_along_axis(logp[:, None], tokens[..., None], -1)[..., 0], cut

    def _drawn(self, probability: Floats) -> Ints:
        """Tokens ``(B, G, L)`` by the inverse of each position's distribution, one search for all of them."""
        size, length, vocab = probability.shape
        place = np.arange(size * length).reshape(size, 1, length)
        cdf = probability.cumsum(-1) / probability.sum(-1, keepdims=True)
        draws = self.rng.random((size, self.plan.group, length)) + place
        marks = (cdf.reshape(size * length, vocab) + place.reshape(-1, 1)).ravel()
        return np.clip(np.searchsorted(marks, draws, side="right") - place * vocab, 0, vocab - 1)

    def pay(self, answers: Answers, cut: Floats, step: int) -> tuple[Floats, Floats, dict[str, Floats]]:
        """True reward, reward that is paid, and its parts."""
        plan, rng = self.plan, self.rng
        parts = pays(self.world, answers)
        true = sum(parts.values(), np.zeros(cut.shape))
        judged = answers
        faulty = self.faulty(step)
        if plan.wrong_prompt and faulty:
            judged = Answers(answers.tokens, answers.mask, np.roll(answers.targets, 1, 0), answers.vocab)
            parts = pays(self.world, judged)
        if step >= plan.jump_at * plan.steps:
            true, parts = true * 0, {name: value * 0 for name, value in parts.items()}
        paid = sum(parts.values(), np.zeros(cut.shape))
        if plan.flips:
            paid = np.where(rng.random(paid.shape) < plan.flips, self.world.top - paid, paid)
        if plan.noise:
            paid = paid + plan.noise * rng.normal(0, 1, paid.shape)
        if faulty:
            paid = self._faulty_pay(paid, answers, cut, parts)
        return true, paid, parts

    def _faulty_pay(self, paid: Floats, answers: Answers, cut: Floats, parts: dict[str, Floats]) -> Floats:
        plan, rng = self.plan, self.rng
        if plan.hack:
            trick = (answers.tokens >= answers.vocab - max(1, answers.vocab // 8)) * answers.mask
            bonus = plan.hack * self.world.top_scale * trick.mean(-1)
            parts["style"] = bonus
            paid = paid + bonus
        if plan.per_token:
            paid = paid + plan.per_token * answers.lengths / self.world.length
        if plan.cut_reward:
            paid = paid * (1 - cut)
        if plan.shuffle:
            order = rng.permuted(np.broadcast_to(np.arange(paid.shape[1]), paid.shape), axis=1)
            swapped = np.take_along_axis(paid, order, 1)
            paid = np.where(rng.random(paid.shape) < plan.shuffle, swapped, paid)
        paid = np.minimum(paid, plan.capped) * plan.reward_scale
        lost = max(plan.zero_reward, plan.errors)
        if lost:
            gone = rng.random(paid.shape) < lost
            paid = np.where(gone, 0.0, paid)
            for name in parts:
                parts[name] = np.where(gone, 0.0, parts[name])
        return np.ones_like(paid) if plan.constant_reward else paid

    def collect(self, step: int) -> Batch:
        """Sample a batch and work out its advantages."""
        plan = self.plan
        count = plan.prompts
        if self.world.curriculum:
            count = max(plan.batch, int(np.ceil(plan.prompts * min(1.0, (step + 1) / (0.8 * plan.steps)))))
            prompts = np.sort(self.rng.choice(np.arange(max(0, count - 2 * plan.batch), count), plan.batch, False))
        else:
            prompts = np.sort(self.rng.choice(count, plan.batch, replace=False))
        answers, sampled, cut = self.sample(prompts, step)
        true, paid, parts = self.pay(answers, cut, step)
        if not plan.normalised and self.faulty(step):
            adv = paid.copy()
        else:
            adv = np.asarray(advantages.compute(plan.estimator, paid).values_gk)
        if plan.shuffle or plan.sign != 1:
            adv = adv * (plan.sign if self.faulty(step) else 1)
        temperature = plan.sampler_temperature if plan.same_temperature else 1.0
        logp = log_softmax(self.logits(prompts) / temperature)
        old = np.take_along_axis(logp[:, None], answers.tokens[..., None], -1)[..., 0]
        return Batch(prompts, answers, sampled, old, paid, true, parts, adv, cut)

    def weights(self, batch: Batch, step: int) -> Floats:
        """What each token counts in the loss, ``(B, G, L)``, before its advantage."""
        plan, mask = self.plan, batch.answers.mask.copy()
        if self.faulty(step):
            if plan.masked:
                mask *= np.random.default_rng(plan.seed + step).random(mask.shape) >= plan.masked
            if plan.end_untrained:
                mask *= batch.answers.tokens != 0
        total = mask.shape[0] * mask.shape[1]
        if plan.summed and self.faulty(step):
            return mask
        if plan.loss in ("grpo", "gspo"):
            return mask / np.maximum(batch.answers.mask.sum(-1, keepdims=True), 1) / total
        if plan.loss == "dr_grpo":
            return mask / (total * self.own.shape[1])
        return mask / max(batch.answers.mask.sum(), 1)

    def gradient(self, batch: Batch, step: int) -> tuple[Floats, dict[str, float]]:
        """Gradient of the objective in the logits of the batch ``(B, L, V)``, and what a trainer logs of it."""
        plan = self.plan
        logp = log_softmax(self.logits(batch.prompts))
        probability = np.exp(logp)
        new = np.take_along_axis(logp[:, None], batch.answers.tokens[..., None], -1)[..., 0]
        weight, adv = self.weights(batch, step), batch.advantages[..., None]
        log_ratio = (new - batch.old_logp) * batch.answers.mask
        if plan.loss == "gspo":
            log_ratio = np.broadcast_to(log_ratio.mean(-1, keepdims=True), log_ratio.shape)
        ratio = np.exp(np.clip(log_ratio, -20, 20))
        beyond = ((ratio > 1 + plan.clip) & (adv > 0)) | ((ratio < 1 - plan.clip) & (adv < 0))
        used = np.minimum(ratio, 1 + plan.clip) if plan.loss == "cispo" else np.where(beyond, 0.0, ratio)
        if plan.clipped_off:
            used = ratio
        coefficient = weight * adv * used
        size, length, vocab = logp.shape
        places = (np.arange(size)[:, None, None] * length + np.arange(length)) * vocab + batch.answers.tokens
        gradient = np.bincount(places.ravel(), coefficient.ravel(), minlength=logp.size).reshape(logp.shape)
        gradient -= probability * coefficient.sum(1)[..., None]
        share = weight.sum(1)[..., None]
        entropy = -(probability * logp).sum(-1, keepdims=True)
        gap = logp - self.reference[batch.prompts]
        divergence = (probability * gap).sum(-1, keepdims=True)
        gradient -= plan.bonus * share * probability * (logp + entropy)
        gradient -= plan.beta * share * probability * (gap - divergence)
        occupied = batch.answers.mask.mean(1)
        tokens = max(occupied.sum(), 1e-9)
        logs = {
            "loss": float(
                -(weight * adv * np.minimum(ratio, 1 + plan.clip)).sum() + plan.beta * (share * divergence).sum()
            ),
            "entropy": float((entropy[..., 0] * occupied).sum() / tokens),
            "kl": float((divergence[..., 0] * occupied).sum() / tokens),
            "clip_ratio/region_mean": float((beyond * batch.answers.mask).sum() / max(batch.answers.mask.sum(), 1)),
        }
        return gradient * plan.gradient_scale, logs

    def rate(self, step: int) -> float:
        plan = self.plan
        done = step / max(plan.steps, 1)
        factor = {
            "constant": 1.0,
            "linear": 1 - done,
            "cosine": 0.5 * (1 + np.cos(np.pi * done)),
            "warmup": min(1.0, (step + 1) / (0.1 * plan.steps + 1)),
        }[plan.schedule]
        if self.faulty(step):
            factor *= plan.rate_factor
        return float(plan.rate * factor * (done < plan.rate_stop))

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Take the optimizer's steps on one batch; returns what is logged of the last one."""
        plan = self.plan
        logs: dict[str, float] = {}
        for _ in range(plan.epochs):
            gradient, logs = self.gradient(batch, step)
            own = np.zeros_like(self.own)
            own[batch.prompts] = gradient
            gradients = [own, gradient.sum(0)]
            if plan.accumulates and self.faulty(step):
                gradients = [g + k for g, k in zip(gradients, self.carried or [0.0, 0.0], strict=True)]
                self.carried = gradients
            if step == self.spike:
                gradients = [g * plan.harmless_spike for g in gradients]
            norm = float(np.sqrt(sum((g**2).sum() for g in gradients)))
            logs["grad_norm"] = norm
            factor = min(1.0, plan.max_norm / max(norm, 1e-12))
            if step == int(plan.jolt_at * plan.steps):
                factor, logs["grad_norm"] = plan.jolt, norm * plan.jolt
            if not (plan.frozen and self.faulty(step)):
                self._apply(
                    [g * factor for g in gradients], step, plan.jolt if step == int(plan.jolt_at * plan.steps) else 1
                )
        return logs

    def _apply(self, gradients: list[Floats], step: int, jolt: float) -> None:
        plan, rate = self.plan, self.rate(step) * max(1.0, jolt)
        self.updates += 1
        for i, (table, gradient) in enumerate(zip((self.own, self.shared), gradients, strict=True)):
            if plan.adam:
                first, second = self.moments[i], self.moments[2 + i]
                first += 0.1 * (gradient - first)
                second += 0.01 * (gradient**2 - second)
                mean = first / (1 - 0.9**self.updates)
                change = rate * mean / (np.sqrt(second / (1 - 0.99**self.updates)) + plan.adam_eps)
            else:
                change = rate * gradient
            if plan.least_update and self.faulty(step):
                change = np.where(np.abs(change) < plan.least_update, 0.0, change)
            table += np.clip(change, -30, 30)
        if plan.decay and self.faulty(step):
            self.own -= rate * plan.decay * (self.prompts.logits + self.own)
