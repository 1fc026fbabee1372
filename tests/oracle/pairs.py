"""Pairs: prompts and answers belong together, in rollouts, in demonstrations and in the data themselves."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from levelhead.errors import InputError
from levelhead.rollout.draws import derive
from levelhead.tasks.base import SingleTurnTask
from oracle.context import PreflightContext
from oracle.result import Check, judged
from oracle.tokens import demonstrations

ROWS = 64
"""Neighbouring training rows whose answers are held against each other's prompts."""
LOOKED_AT = 20_000
"""Training rows that are put in order; of a task with more, rows seldom have their neighbours among them."""
BLOCKS = 2
"""Stretches of the data that they are taken from."""
FEW = 12
"""Rows that the policy itself is asked about."""
PATIENCE_S = 0.1
"""Seconds that scoring answers under other prompts may take, by the time that one row takes."""
DOUBT_S = 6.0
"""The same where they do not score more under their own."""
LEAST = 20
"""Rows that are scored at least, where that takes no more than ``DOUBT_S``."""
AFFORDED_S = 3.0
"""Seconds of training that as many tokens may take as the policy is asked about."""
LAGS = (1, -1, 2, -2)
"""Rows by which answers may be out of step."""
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"(\d+)")


def check_pairs(context: PreflightContext) -> Iterator[Check]:
    """Look at pairs of prompt and answer wherever a run makes some."""
    if context.grpo is not None:
        yield _rollouts(context)
    if context.recipe.sft is not None:
        yield _demonstrations(context)


def _rollouts(context: PreflightContext) -> Check:
    """A rollout has read its own prompt, and belongs to the group of that prompt."""
    wrong, compared = None, 0
    for group in context.drawn.groups:
        if not isinstance(context.setup.tasks[group.prompt.task], SingleTurnTask):
            continue
        wanted = context.codec.render(group.prompt.messages)
        for rollout in group.rollouts:
            compared += 1
            if rollout.prompt_id != group.prompt.id and wrong is None:
                wrong = f"a rollout of prompt {rollout.prompt_id!r} is in the group of {group.prompt.id!r}"
            elif tuple(rollout.turns[0].context_ids) != tuple(wanted) and wrong is None:
                wrong = f"a rollout in the group of prompt {group.prompt.id!r} has read another prompt"
    right = f"{compared} rollouts have read the prompt of their group" if compared else "no single-turn rollouts"
    fix = "order completions prompt by prompt, k of each, as prompts are ordered"
    return judged("pairs/rollouts", wrong, right, {"rollouts": compared}, fix)


def _demonstrations(context: PreflightContext) -> Check:
    """In a batch of demonstrations each holds the perfect answer to its own prompt."""
    tasks = context.setup.tasks
    prompts = [
        prompt
        for name, task in tasks.items()
        if isinstance(task, SingleTurnTask) and not task.demonstrates
        for prompt in itertools.islice(task.prompts("train", derive(context.seed, "demonstrations", name)), 6)
        if task.oracle(prompt)
    ]
    check, fix = "pairs/demonstrations", "pair each prompt with its own answer, whatever the order of the batch"
    try:
        pairs = demonstrations(context, prompts)
    except InputError as error:
        return Check(check, "fail", str(error), {}, fix)
    perfect = ["".join((tasks[prompt.task].oracle(prompt) or [""])[0].split()) for prompt in prompts]
    wrong = None
    if len(pairs) != len(prompts):
        wrong = f"{len(prompts)} prompts have {len(pairs)} demonstrations"
    off = 0
    for i, (prompt, pair) in enumerate(zip(prompts, pairs, strict=False)):
        text = "".join(context.codec.decode(pair.completion_ids).split())
        if perfect[i] in text and tuple(pair.context_ids) == tuple(context.codec.render(prompt.messages)):
            continue
        off += 1
        whose = next((prompts[j].id for j, other in enumerate(perfect) if other and other in text and j != i), None)
        what = f"the answer to {whose!r}" if whose and perfect[i] not in text else "another prompt or answer"
        wrong = wrong or f"the demonstration for prompt {prompt.id!r} holds {what}"
    evidence = {"demonstrations": len(pairs), "out_of_step": off}
    right = f"{len(pairs)} demonstrations hold the perfect answers to their prompts"
    return judged(check, wrong, right if pairs else "no single answers to compare", evidence, fix)
