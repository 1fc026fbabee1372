"""Exact statements about a run that can be told before it: its data, schedule, optimizer, and place in the prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
from torch import nn

from levelhead.policy.nudge import MOST
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo, Sft
from levelhead.rollout.draws import derive
from levelhead.training.curriculum import make_stream
from levelhead.training.identities import adamw, entries
from levelhead.training.identities.base import Violation, close, some
from levelhead.training.identities.optimizer import EXACT
from levelhead.training.identities.stepping import Stepping
from levelhead.training.optim import Updater
from oracle.context import PreflightContext
from oracle.result import Check, judged

PLACES = 4096
"""Updates of a stage at which the schedule is looked at, spread evenly."""
TAKEN = 5
"""Prompts that are sampled before a position is saved."""


def check_identities(context: PreflightContext) -> Iterator[Check]:
    """Schedule, optimizer and resumption: what does not hold here cannot hold in the run."""
    recipe = context.recipe
    for stage, section in (("sft", recipe.sft), ("grpo", recipe.grpo)):
        if section is not None:
            yield _schedule(context.policy, stage, section)
            yield _optimizer(context.policy, stage, section, context.seed)
            yield _position(context, stage, section)


def _updates(section: Sft | Grpo) -> int:
    return section.steps * (section.updates_per_batch * section.epochs if isinstance(section, Grpo) else 1)


def _updater(policy: Policy, section: Sft | Grpo) -> Updater:
    return Updater(policy.parameters, section.optimizer, _updates(section), policy.matrices)


def _schedule(policy: Policy, stage: str, section: Sft | Grpo) -> Check:
    """The learning rate of every update is what the recipe's schedule gives, worked out once more."""
    updater, updates = _updater(policy, section), _updates(section)
    wrong = None
    for update in range(0, updates, max(updates // PLACES, 1)):
        updater.done = update
        seen, wanted = updater.learning_rate, adamw.scheduled(section.optimizer, update, updates)
        if not close(seen, wanted, EXACT, 1e-12 * section.optimizer.learning_rate):
            wrong = f"the learning rate of update {update + 1} would be {seen:.6g}, and the recipe gives {wanted:.6g}"
            break
    peak = section.optimizer.learning_rate
    right = f"the learning rate follows the recipe's schedule over {updates} updates"
    evidence = {"updates": updates, "peak": peak}
    return judged(f"identities/schedule/{stage}", wrong, right, evidence, "see training/optim.py")


def _optimizer(policy: Policy, stage: str, section: Sft | Grpo, seed: int) -> Check:
    """Two real updates, on made-up gradients of some weights, are AdamW's with the recipe's settings."""
    name, fix = (
        f"identities/optimizer/{stage}",
        "see training/optim.py; a weight in half precision needs float32 copies",
    )
    share = _reachable(policy, section.optimizer.learning_rate)
    told = _tried(policy, section, seed)
    evidence = {"violations": [violation.code for violation in told], "reachable": share}
    if told:
        return Check(name, "fail", told[0].text, evidence, fix)
    if share < 0.5:
        text = f"at the peak learning rate only {share:.0%} of the weights can move: a step is lost in their rounding"
        return Check(name, "fail" if share < 0.01 else "warn", text, evidence, "train in float32, or with adapters")
    return Check(name, "pass", "two trial updates are the optimizer's of the recipe, and reach the weights", evidence)


def _reachable(policy: Policy, rate: float) -> float:
    """Share of the trained weights that a change of the learning rate's size is not rounded away from."""
    weights = [p for p in policy.parameters if p.numel()]
    if not weights:
        return 0.0
    values = entries.read(weights, [entries.spread(p) for p in weights]).abs()
    unit = torch.tensor([[torch.finfo(p.dtype).eps] for p in weights], dtype=torch.float64) * values / 2
    return float((rate > unit).double().mean())


def _tried(policy: Policy, section: Sft | Grpo, seed: int) -> list[Violation]:
    """What two updates of the weights break; they are put back to the bit."""
    last_parameters: list[nn.Parameter] = []
    for parameter in reversed(policy.parameters):
        if last_parameters and sum(p.numel() for p in last_parameters) + parameter.numel() > MOST:
            break
        last_parameters.append(parameter)
    before = [parameter.detach().clone() for parameter in last_parameters]
    updater = _updater(policy, section)
    stepping = Stepping(policy, updater, _updates(section))
    generator = torch.Generator().manual_seed(derive(seed, "identities"))
    violations: list[Violation] = []
    try:
        for _ in range(2):
            for parameter in last_parameters:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.grad = noise.to(parameter.device, parameter.dtype)
            stepping.gradient()
            violations += stepping.clipped(updater.clip(), section.optimizer.max_grad_norm)
            rate = float(updater.optimizer.param_groups[0]["lr"])
            updater.step()
            violations += stepping.finish(rate, 1.0, skipped=False)
            violations += stepping.frozen()
    finally:
        with torch.no_grad():
            for parameter, original in zip(last_parameters, before, strict=True):
                parameter.copy_(original)
                parameter.grad = None
    return violations


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
