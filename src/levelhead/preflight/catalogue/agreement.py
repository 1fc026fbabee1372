"""Explanations of the checks of agreement between sampler, trainer and reference."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "agreement/sampler",
        "The log-probabilities that the sampler records are the model's own, at the temperature of the recipe.",
        "Draws completions and recomputes each token's log-probability one sequence at a time, without cache or "
        "padding. Where they differ it exchanges one thing at a time (tokens, weights, temperature, sampling controls, "
        "context, the adapter's scale, positions, precision) and names the one after which they agree.",
        "Differences below the rounding of the compute type are not seen. Where weights are not float32, neither are "
        "faults smaller than that rounding.",
    ),
    Entry(
        "agreement/packing",
        "A sequence has the same log-probabilities packed with others as alone.",
        "Packs completions as the trainer does, prefix trees included, and compares each token with the plain "
        "computation. Where they differ, the cause is looked for as in agreement/sampler.",
        "It compares forward passes. What the loss makes of them is the business of the loss and signs checks.",
    ),
    Entry(
        "agreement/synced",
        "After an update and a weight sync the sampler draws from the new weights, all of them, and reports the new "
        "version.",
        "Changes every trained weight, syncs, and compares the sampler's log-probabilities with the model's. Where "
        "they differ, it compares the sampler's copy with the model's weights, or gives one part after another its old "
        "weights until they agree, and names that part, as layers.1.mlp.",
        "It tries one sync, before training. A sync that fails later shows in the sampling differences of each step. "
        "Where weights are in half precision, a part that moves log-probabilities by less than rounding is not seen.",
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
        "Runs one GRPO step of the run's own trainer on drawn rollouts and reads its sampling differences. Where there "
        "are any, it holds what the trainer's model read against what was drawn, and looks for the cause as in "
        "agreement/sampler, on the trainer's side first.",
        "It compares the numbers of the first update. Two causes at once are named as neither; so is one that is none "
        "of those listed.",
    ),
    Entry(
        "agreement/dropout",
        "In training mode the policy is still a function of its tokens: no dropout.",
        "Looks for dropout that is switched on, and runs two passes in training mode, which must be equal.",
        "Two passes of a few tokens may agree by chance where a dropout hardly ever acts; modules are counted as well.",
    ),
)
