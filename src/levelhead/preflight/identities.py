"""Exact statements about a run that can be told before it: its data, schedule, optimizer, and place in the prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

from levelhead.policy.policy import Policy
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.recipe.training import Grpo, Sft
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Task
from levelhead.training import entries
from levelhead.training.curriculum import make_stream
from levelhead.training.items import overlap

TAKEN = 5
"""Prompts that are sampled before a position is saved."""


def some(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_identities(context: PreflightContext) -> Iterator[Check]:
    """Data, schedule, optimizer and resumption: what does not hold here cannot hold in the run."""
    for task in context.setup.tasks.values():
        yield from _data(task)
    recipe = context.recipe
    for stage, section in (("sft", recipe.sft), ("grpo", recipe.grpo)):
        if section is not None:
            yield _optimizer(context.policy, stage, section)
            yield _position(context, stage, section)


def _data(task: Task) -> Iterator[Check]:
    """Nothing that is held out is trained on, and items can be told apart."""
    same, held, items, again = overlap(task)
    wrong = f"{len(same)} of {held} held-out items ask what a training item asks: {some(same)}" if same else None
    fix = "drop duplicates from the data, or split so that what asks the same falls on one side"
    right = f"none of {held} held-out items asks what a training item asks"
    evidence = {"held_out": held, "trained": len(same), "items": same[:8]}
    yield judged(f"identities/disjoint/{task.name}", wrong, right, evidence, fix)
    wrong = f"{again} of {items} training items have the id of another: their draws are alike" if again else None
    right = f"{items} training items have ids of their own"
    yield judged(f"identities/items/{task.name}", wrong, right, {"items": items}, "give each item an id of its own")


def _optimizer(policy: Policy, stage: str, section: Sft | Grpo) -> Check:
    """Weights are fine enough for the learning rate: a step is not lost in their rounding."""
    name, share = f"identities/optimizer/{stage}", _reachable(policy, section.optimizer.learning_rate)
    evidence = {"reachable": share}
    if share < 0.5:
        text = f"at the peak learning rate only {share:.0%} of the weights can move: a step is lost in their rounding"
        return Check(name, "fail" if share < 0.01 else "warn", text, evidence, "train in float32, or with adapters")
    return Check(name, "pass", "steps of the peak learning rate reach the weights", evidence)


def _reachable(policy: Policy, rate: float) -> float:
    """Share of the trained weights that a change of the learning rate's size is not rounded away from."""
    weights = [p for p in policy.parameters if p.numel()]
    if not weights:
        return 0.0
    values = entries.read(weights, [entries.spread(p) for p in weights]).abs()
    unit = torch.tensor([[torch.finfo(p.dtype).eps] for p in weights], dtype=torch.float64) * values / 2
    return float((rate > unit).double().mean())


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
