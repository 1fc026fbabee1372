"""Explanations of the checks of the objective's arithmetic."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "objective/gradient",
        "At the first update the slope of the loss along every token's log-probability and entropy is the textbook's.",
        "The run's own trainer makes an update on made-up rollouts, and the gradient that arrives at each token is "
        "compared, to 1e-5, with a second implementation in float64 numpy that shares no code with it.",
        "It does not see whether rewards mean what they should. A variant that the textbook lacks is said to be "
        "unproved.",
    ),
    Entry(
        "objective/off-policy",
        "The same holds at later mini-batches, in a second pass and on a batch of older weights, with clips in force.",
        "The log-probabilities of the policy are moved by known amounts from update to update, so that every clip and "
        "bound acts on both sides; each update is compared like the first.",
        "It does not see whether an asynchronous batch was really drawn by the weights before.",
    ),
    Entry(
        "objective/weights",
        "The gradient that reaches the optimizer, merged over tasks and clipped, is the one that these slopes lead to.",
        "Takes the textbook's slopes through a plain forward pass, merges and clips them, and compares the result "
        "with the gradient of the trainer's packed passes, to 2e-4 of its length in float32.",
        "Where trained weights are in half precision it compares to 15%. What the optimizer makes of the gradient is "
        "identities/optimizer's to say; that several processes add up to one is not tried.",
    ),
)
