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
        "identities/optimizer/STAGE",
        "Weights are fine enough for the learning rate.",
        "Compares a step of the peak learning rate with the rounding of a few entries of every trained weight.",
        "It looks at sizes; whether updates are right is for the project's own tests.",
    ),
    Entry(
        "identities/resume/STAGE",
        "A stage that is taken up again goes on with the prompts that would have come.",
        "Saves the position of a stream of prompts, loads it into a fresh one, and compares what comes next.",
        "It looks at prompts. Weights, moments and random generators are compared when a run is really resumed.",
    ),
)
