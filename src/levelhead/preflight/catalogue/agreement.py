"""Explanations of the checks of agreement between sampler, trainer and reference."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "agreement/sampler",
        "The log-probabilities that the sampler records are the model's own, at the temperature of the recipe.",
        "Draws completions and recomputes each token's log-probability one sequence at a time, without cache or "
        "padding.",
        "Differences below the rounding of the compute type are not seen. Where weights are not float32, neither are "
        "faults smaller than that rounding.",
    ),
    Entry(
        "agreement/packing",
        "A sequence has the same log-probabilities packed with others as alone.",
        "Packs completions as the trainer does, prefix trees included, and compares each token with the plain "
        "computation.",
        "It compares forward passes. What the loss makes of them is the business of the loss and signs checks.",
    ),
    Entry(
        "agreement/synced",
        "After an update and a weight sync the sampler draws from the new weights, all of them, and reports the new "
        "version.",
        "Changes trained weights a little, syncs, and compares the sampler's log-probabilities with the model's. "
        "Where they differ, it leaves one part after another as it was until they agree, and names that part.",
        "It changes the last million trained weights, and tries one sync, before training. A sync that fails later "
        "shows in the sampling differences of each step.",
    ),
    Entry(
        "agreement/reference",
        "The reference is the policy of step 0 and stays where it is when the policy moves.",
        "Keeps a reference as the run does, compares its log-probabilities with the policy's, changes the policy's "
        "weights and compares again.",
        "It does not know whether the recipe wanted another model as its reference.",
    ),
    Entry(
        "agreement/trainer",
        "The trainer finds the log-probabilities that the sampler recorded, so that every ratio of the first update "
        "is 1.",
        "Runs one GRPO step of the run's own trainer on drawn rollouts and reads its sampling differences.",
        "It compares the numbers of the first update, and does not say which of several causes moved them: the other "
        "checks of agreement, tokens and batching narrow that down.",
    ),
    Entry(
        "agreement/dropout",
        "In training mode the policy is still a function of its tokens: no dropout.",
        "Looks for dropout that is switched on, and runs two passes in training mode, which must be equal.",
        "Two passes of a few tokens may agree by chance where a dropout hardly ever acts; modules are counted as well.",
    ),
)
