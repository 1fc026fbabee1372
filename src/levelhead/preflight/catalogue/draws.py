"""Explanations of the checks of what sampling draws, with their chance levels."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "sampling/repeats",
        "Rollouts of a group are equal as often as the probabilities of their draws allow, and not more often or less.",
        "Counts repeats and holds the count against the sum of the recorded probabilities by an e-value.",
        "A policy that is nearly certain repeats itself, and may: there it can see little.",
    ),
    Entry(
        "sampling/distribution",
        "Tokens are drawn at the recipe's temperature and truncation.",
        "Compares the likelihood of the drawn tokens under the recipe's controls with that under others.",
        "A difference of 15% in temperature takes some hundred tokens to see, and a policy whose logits are all alike "
        "shows none.",
    ),
    Entry(
        "sampling/returns",
        "A prompt that returns, in a batch, in a redraw or at a later step, gets draws of its own.",
        "Draws a few prompts again and again and counts equal completions against their chance.",
        "It looks at a few prompts and two steps.",
    ),
    Entry(
        "sampling/processes",
        "Two processes draw together what one draws alone: every prompt once, each by its own seed.",
        "Divides a batch as two processes would, in this process, and compares.",
        "It does not start processes or talk between them.",
    ),
    Entry(
        "sampling/shares",
        "Prompts are drawn in the shares that weights of tasks and the curriculum ask for.",
        "Draws prompts without sampling answers, with made-up outcomes, and compares shares with those meant.",
        "It looks at the choice of prompts, not at what is learnt from them.",
    ),
    Entry(
        "sampling/redraws",
        "Dynamic sampling keeps every group with contrast and redraws those without.",
        "Runs the batch's own redrawing on made-up scores.",
        "It says nothing of how often redraws will be needed.",
    ),
)
