"""Explanations of the checks of exact statements about the coming run."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "identities/disjoint/TASK",
        "No held-out item asks what a training item asks.",
        "Compares the messages of all training and held-out prompts, not their ids.",
        "It sees equal texts, not rephrased ones, and the first items only where a task makes them without end.",
    ),
    Entry(
        "identities/items/TASK",
        "Every training item has an id of its own.",
        "Reads the ids of one epoch.",
        "It does not see two items with equal text and different ids.",
    ),
    Entry(
        "identities/schedule/STAGE",
        "The learning rate of every update is the one that the recipe's schedule gives.",
        "Works the schedule out once more, by its formula, for all updates of the stage.",
        "It looks at the rate that the optimizer is told; what it does with it is identities/optimizer's.",
    ),
    Entry(
        "identities/optimizer/STAGE",
        "Two updates are AdamW's with the recipe's settings, count as two, and reach every trained weight.",
        "Makes two updates on copies of the weights and repeats them by the formula.",
        "An optimizer other than AdamW is looked at for what it reaches, not for its arithmetic.",
    ),
    Entry(
        "identities/resume/STAGE",
        "A stage that is taken up again goes on with the prompts that would have come.",
        "Saves the position of a stream of prompts, loads it into a fresh one, and compares what comes next.",
        "It looks at prompts. Weights, moments and random generators are compared when a run is really resumed.",
    ),
)
