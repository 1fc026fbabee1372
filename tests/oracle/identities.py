"""A stage that is taken up again goes on with the prompts that would have come."""

from __future__ import annotations

import json
from collections.abc import Iterator

from levelhead.recipe.training import Grpo, Sft
from levelhead.rollout.draws import derive
from levelhead.training.curriculum import make_stream
from oracle.context import PreflightContext
from oracle.result import Check, judged

TAKEN = 5
"""Prompts that are sampled before a position is saved."""


def check_identities(context: PreflightContext) -> Iterator[Check]:
    """Save and load the position of each stage's stream of prompts."""
    recipe = context.recipe
    for stage, section in (("sft", recipe.sft), ("grpo", recipe.grpo)):
        if section is not None:
            yield _position(context, stage, section)


def some(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _position(context: PreflightContext, stage: str, section: Sft | Grpo) -> Check:
    """A stream that is taken up again from what a checkpoint notes goes on with the same prompts."""
    tasks = list(context.setup.tasks.values())
    shares = [context.setup.weights[task.name] for task in tasks]
    seed = derive(context.recipe.seed, "stream", stage)
    curriculum = section.curriculum if isinstance(section, Grpo) else None
    stream, again = (make_stream(tasks, shares, seed, curriculum) for _ in range(2))
    stream.take(TAKEN)
    state = json.loads(json.dumps(stream.state_dict()))
    shown, taken = [prompt.id for prompt in stream.peek(TAKEN)], [prompt.id for prompt in stream.take(TAKEN)]
    again.load_state_dict(state)
    resumed = [prompt.id for prompt in again.take(TAKEN)]
    wrong = None
    if resumed != taken:
        wrong = f"a resumed run would go on with {some(resumed)}, and the run that was left with {some(taken)}"
    elif shown != taken:
        wrong = f"a look ahead shows {some(shown)}, and then come {some(taken)}"
    right = "a resumed run goes on with the prompts that would have come"
    return judged(f"identities/resume/{stage}", wrong, right, {"next": taken}, "see the stream's state and load_state")
