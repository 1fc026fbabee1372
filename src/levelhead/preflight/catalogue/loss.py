"""Explanations of the checks of the loss, its signs, and the sampling controls."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "loss/completion-only",
        "The GRPO loss comes from every completion token and from nothing else: not from prompts, not from padding.",
        "Runs one step of the run's own trainer on rollouts cut to unequal lengths, some ended by a stop token, and "
        "records which hidden states and which labels a gradient reaches. A loss that is no number fails.",
        "It sees whether a token counts, not how much. Losses that leave tokens out on purpose (clip_cov, kl_cov) "
        "may leave out a fifth. The recipe's estimator, masks and KL are switched off for the step.",
    ),
    Entry(
        "loss/demonstrations",
        "The supervised loss comes from the tokens of the demonstrations and from nothing else.",
        "Runs one supervised step and records which hidden states and which labels a gradient reaches.",
        "It sees whether a token counts, not how much.",
    ),
    Entry(
        "loss/labels",
        "There is one label for each completion token, and each of them changes the loss.",
        "Packs demonstrations and rollouts, counts labels, and changes each to another token.",
        "It looks at what is packed. Masks that the loss applies afterwards show in loss/completion-only.",
    ),
    Entry(
        "loss/stop-token",
        "A completion that stopped, and every demonstration, ends with one stop token; one that was cut holds none.",
        "Counts stop tokens in drawn completions, in completions cut at four tokens, and in demonstrations.",
        "An untrained policy rarely stops by itself, so that completions that stopped may be missing from the sample.",
    ),
    Entry(
        "sampling/penalties",
        "Presence, frequency and repetition penalties count the tokens of the completion and no others.",
        "Draws with the recipe's penalties, or with test values, and recomputes each penalised log-probability by "
        "hand.",
        "It looks at eight tokens a completion, and at one made-up completion that repeats its tokens.",
    ),
    Entry(
        "sampling/temperature",
        "The rollouts of a group differ: they are not drawn greedily, nor with the same random numbers.",
        "Reads grpo.sampling.temperature, and fails where all rollouts of every group drawn are equal although the "
        "policy's own probabilities make that all but impossible.",
        "It does not measure the temperature; agreement/sampler does. Groups that are alike in part are not seen.",
    ),
    Entry(
        "sampling/min-length",
        "The policy is allowed to end an answer where a perfect answer ends.",
        "Compares min_new_tokens with the lengths of demonstrations or of the oracle's answers.",
        "Without an oracle there is nothing to compare with. It looks at a few prompts of each task.",
    ),
    Entry(
        "sampling/max-length",
        "Perfect answers fit into max_new_tokens, in training and in evaluation.",
        "Compares the limits with the lengths of demonstrations or of the oracle's answers, and counts completions "
        "that were cut.",
        "A policy that thinks before it answers needs more room than the oracle's answer; only samples show how much.",
    ),
    Entry(
        "signs/audit",
        "Each term of the objective enters the update with the sign and the weight that its sense asks for.",
        "Runs one audited step in float32, some way from the reference, and expresses the update's gradient by the "
        "gradients of its terms.",
        "It trusts the terms' own values; signs/reward, signs/entropy and signs/kl measure what they do to the policy.",
    ),
    Entry(
        "signs/precision",
        "The audit of the first updates can judge signs in the run's own precision, and will not stop the run.",
        "Does in the run's compute type what the audit will do there.",
        "In float32 there is nothing to foresee, and it passes unseen.",
    ),
    Entry(
        "signs/reward",
        "An update on rewards alone makes rewarded rollouts likelier than the others.",
        "Gives rollouts known rewards, takes the gradient of the run's own trainer, moves the weights against it, "
        "and measures likelihoods with plain forward passes.",
        "It proves the direction, not the size. Estimators that do not aim at the mean reward are tried with grpo's.",
    ),
    Entry(
        "signs/entropy",
        "The entropy bonus raises the entropy of the policy.",
        "Leaves the bonus alone in the loss, steps along its gradient, and measures token entropies before and after.",
        "It proves the direction; how strong the coefficient is, and whether it grows, the guard watches.",
    ),
    Entry(
        "signs/kl",
        "The KL term pulls the policy back to the reference.",
        "Moves the policy away from the reference, leaves the KL alone in the loss, steps along its gradient, and "
        "measures the divergence. Estimators whose gradient is not that of the divergence can only warn.",
        "It proves the direction, not the size, and only for a KL in the loss.",
    ),
)
