"""Faults of configuration: settings that are known to break runs."""

from __future__ import annotations

from faults.known.registry import misconfigured

misconfigured(
    "group-of-two",
    "two rollouts a prompt, divided by their deviation: any difference becomes +1 and -1",
    "grpo.group_size=2",
    "grpo.advantage.ddof=0",
)
misconfigured("learning-rate-too-high", "thirty times the learning rate", "grpo.optimizer.learning_rate=3e-2")
misconfigured(
    "bonus-too-strong", "an entropy coefficient of 1: noise is worth more than the task", "grpo.entropy.coef=1.0"
)
misconfigured("answers-cut-short", "a budget of three tokens", "grpo.sampling.max_new_tokens=3")
misconfigured(
    "greedy-rollouts", "temperature 0: the rollouts of a prompt are all the same", "grpo.sampling.temperature=0"
)
misconfigured("rollouts-too-warm", "temperature 5: rollouts are noise", "grpo.sampling.temperature=5")
misconfigured(
    "answers-forced-long", "a minimum length above that of perfect answers", "grpo.sampling.min_new_tokens=15"
)
misconfigured(
    "repetition-rewarded",
    "a presence penalty below 0: what was said is said again",
    "grpo.sampling.presence_penalty=-2",
)
misconfigured("draws-cut-to-the-likeliest", "top-k of 1: draws without any choice", "grpo.sampling.top_k=1")
misconfigured(
    "batch-used-up",
    "twenty epochs over each batch with a clip range that never clips",
    "grpo.epochs=20",
    "grpo.loss.clip_low=0.99",
    "grpo.loss.clip_high=20",
    "grpo.optimizer.learning_rate=1e-2",
)
misconfigured(
    "weights-decay-away",
    "a weight decay of 10, the largest that a recipe may ask for",
    "grpo.optimizer.weight_decay=10",
    "grpo.steps=40",
)
misconfigured("one-group-a-batch", "every update follows a single prompt", "grpo.batch_size=4", "grpo.group_size=4")
misconfigured("leash-too-short", "a KL coefficient of 50: the policy may not move", "grpo.kl.coef=50")
