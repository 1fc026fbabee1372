"""Other arithmetics that a gradient may turn out to be: each the textbook's own with one thing changed.

What a bug computes is most often a correct formula in the wrong place.  A gradient that equals one of these is named by
it, which says more than any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import get_args

import numpy as np

from levelhead.objective.controllers import Fixed
from levelhead.objective.task_weights import FixedWeights
from levelhead.recipe.objective import Loss, Shaping
from oracle import settings as every_key
from oracle.differential import Variant, changed
from oracle.rehearsal import Rehearsal, Update
from oracle.textbook import Problem, Settings
from oracle.textbook.book import Worth
from oracle.textbook.estimators import ESTIMATORS, deviation, mean
from oracle.textbook.surrogates import clip_range

_WITHOUT = 1e6
"""A clip range that nothing reaches."""


def variants(rehearsal: Rehearsal) -> Iterator[Variant]:
    """Yield the arithmetics that a wrong gradient is compared with, the likelier ones first."""
    settings = rehearsal.settings
    yield from _of_ratios(settings)
    yield from _of_kl(settings)
    yield from _of_means(settings, rehearsal)
    yield from _of_advantages(settings, rehearsal)
    yield from _of_losses(settings)
    yield from _of_rewards(settings)
    yield from _of_tasks(settings)


def _of_ratios(settings: Settings) -> Iterator[Variant]:
    loss = every_key.loss(settings.grpo.loss)
    yield Variant("the old log-probabilities are the new ones, so that the ratio is always 1", settings, old="new")
    says = "the old log-probabilities are those of the update before, not of the policy that the batch began with"
    yield Variant(says, settings, old="previous")
    says = "the old log-probabilities are those of the distribution that was drawn from, after the sampling controls"
    yield Variant(says, settings, old="behaviour")
    yield Variant(
        "the old log-probabilities are the sampler's, not the policy's before the first update", settings, old="sampled"
    )
    yield Variant(
        "the old log-probabilities are the policy's before the first update, not the sampler's", settings, old="scored"
    )
    low, high = clip_range(loss)
    if low or high:
        yield Variant("the clip's lower side is missing", changed(settings, "loss", clip_low=_WITHOUT))
        yield Variant("the clip's upper side is missing", changed(settings, "loss", clip_high=_WITHOUT))
        yield Variant("nothing is clipped", changed(settings, "loss", clip_low=_WITHOUT, clip_high=_WITHOUT))
        if low != high:
            yield Variant("the clip's two sides are exchanged", changed(settings, "loss", clip_low=high, clip_high=low))
            says = f"the clip range above is {low:g}, that of the lower side, not {high:g}"
            yield Variant(says, changed(settings, "loss", clip_high=low))
            says = f"the clip range below is {high:g}, that of the upper side, not {low:g}"
            yield Variant(says, changed(settings, "loss", clip_low=high))
    if loss.dual_clip is not None:
        yield Variant("loss.dual_clip has no effect", changed(settings, "loss", dual_clip=None))
    elif loss.kind in ("ppo_clip", "clip_cov"):
        yield Variant("a dual clip of 3 is in force that nobody asked for", changed(settings, "loss", dual_clip=3.0))
    yield from _of_importance(settings)


def _of_importance(settings: Settings) -> Iterator[Variant]:
    loss = every_key.loss(settings.grpo.loss)
    if loss.importance is None:
        says = "the surrogate is weighted by old / behaviour, which the recipe does not ask for"
        yield Variant(says, changed(settings, "loss", importance="token_truncate"))
        return
    yield Variant("the importance correction is missing", changed(settings, "loss", importance=None), old="scored")
    for kind in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"):
        says = f"the importance correction is {kind}, not {loss.importance}"
        yield Variant(says, changed(settings, "loss", importance=kind))
    says = "the importance weight is behaviour / old, the wrong way up"
    yield Variant(says, settings, lambda a: replace(a, behaviour=2 * a.old - a.behaviour))
    yield Variant("the importance weight has no upper bound", changed(settings, "loss", importance_high=1e9))
    yield Variant("the importance weight has no lower bound", changed(settings, "loss", importance_low=0.0))


def _of_kl(settings: Settings) -> Iterator[Variant]:
    kl = settings.grpo.kl
    if not (
        kl.coef or any(t.kl or t.controller for t in settings.tasks.values()) or not isinstance(kl.controller, Fixed)
    ):
        return
    where = "the reward" if kl.where == "reward" else "the loss"
    yield Variant(f"the KL enters {where} with the opposite sign", settings, kl=-1.0)
    yield Variant(f"the KL does not enter {where}", settings, kl=0.0)
    for factor in (2.0, 0.5):
        yield Variant(f"the KL enters {where} with {factor:g} times its weight", settings, kl=factor)
    if kl.where == "loss":
        for estimator in ("k1", "k2", "k3"):
            for gradient in ("plain", "k2", "importance"):
                if (estimator, gradient) != (kl.estimator, kl.gradient):
                    own = f"{kl.estimator} with {kl.gradient}"
                    says = f"the KL is that of estimator {estimator} with gradient {gradient}, not {own}"
                    yield Variant(says, changed(settings, "kl", estimator=estimator, gradient=gradient))
        yield Variant(
            "the KL is measured between the policy and its old self, not its reference",
            settings,
            lambda a: replace(a, reference=a.old),
        )
    tasks = settings.tasks
    fixed = {name: replace(t, controller=Fixed()) for name, t in tasks.items()}
    yield Variant("the KL coefficient stays where it was: its controller has no effect", replace(settings, tasks=fixed))
    shared = {name: replace(t, kl=None) for name, t in tasks.items()}
    yield Variant("the tasks' own KL coefficients have no effect", replace(settings, tasks=shared))
    for a, b in combinations(tasks, 2):
        swapped = dict(tasks) | {a: replace(tasks[a], kl=tasks[b].kl), b: replace(tasks[b], kl=tasks[a].kl)}
        yield Variant(f"the KL coefficients of {a} and {b} are exchanged", replace(settings, tasks=swapped))


def _of_means(settings: Settings, rehearsal: Rehearsal) -> Iterator[Variant]:
    loss = every_key.loss(settings.grpo.loss)
    yield Variant(
        f"loss.aggregation: {loss.aggregation} is taken of each micro-batch instead of the whole update",
        settings,
        apart=True,
    )
    says = "answers are normalised by the padded width of their micro-batch"
    yield Variant(says, settings, lambda a: replace(a, learns=a.learns * a.length / a.width))
    longest = max(len(row.completion_ids) for row in rehearsal.rows)
    for mode in ("token_mean", "sequence_mean", "fixed_length"):
        length = loss.fixed_length if mode == "fixed_length" else None
        if mode != loss.aggregation:
            other = changed(settings, "loss", aggregation=mode, fixed_length=length)
            yield Variant(f"the mean is that of loss.aggregation: {mode}, not {loss.aggregation}", other)
            yield Variant(
                f"the mean is {mode} of each micro-batch, not {loss.aggregation} of the update", other, apart=True
            )
    padded = changed(settings, "loss", aggregation="fixed_length", fixed_length=longest)
    yield Variant("answers are normalised by the length of the longest, padding included", padded)
    micros = "the number of micro-batches"
    yield Variant(
        f"the loss is divided by {micros}, after its means were taken", settings, scale=lambda u: 1 / _micros(u)
    )
    yield Variant(f"the loss is {micros} times too large", settings, scale=lambda u: float(_micros(u)))
    says = "every turn counts as a whole rollout: rollouts of many turns weigh too much"
    yield Variant(says, settings, lambda a: replace(a, turns=1))
    grpo = settings.grpo
    way = "left out" if not grpo.mask_truncated else "learnt from"
    yield Variant(
        f"truncated answers are {way} (grpo.mask_truncated)", changed(settings, mask_truncated=not grpo.mask_truncated)
    )
    if loss.top_entropy is not None:
        says = "all tokens are learnt from, not those of high entropy (loss.top_entropy)"
        yield Variant(says, settings, lambda a: replace(a, learns=np.ones(a.length)))
        yield Variant("the tokens of low entropy are learnt from", settings, lambda a: replace(a, learns=1 - a.learns))
    if any(task.balance for task in settings.tasks.values()):
        yield Variant("tasks[].balance has no effect", settings, lambda a: replace(a, balance=1.0))


def _of_advantages(settings: Settings, rehearsal: Rehearsal) -> Iterator[Variant]:
    advantage = every_key.advantage(settings.grpo.advantage)
    yield Variant("the advantages have the opposite sign", settings, lambda a: replace(a, advantage=-a.advantage))
    names = {
        "dr_grpo": "the advantages are not divided by a standard deviation",
        "batch": "the standard deviation is that of the whole batch, not of the group",
    }
    for kind in ESTIMATORS:
        if kind != advantage.kind:
            says = f"the advantages are those of advantage.kind: {kind}, not {advantage.kind}"
            said = names.get(kind, says) if advantage.kind == "grpo" else says
            yield Variant(said, changed(settings, "advantage", kind=kind))
    says = f"the standard deviation has ddof {1 - advantage.ddof}, not {advantage.ddof}"
    yield Variant(says, changed(settings, "advantage", ddof=1 - advantage.ddof))
    for eps in (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3):
        if eps != advantage.eps:
            yield Variant(f"advantage.eps is {eps:g}, not {advantage.eps:g}", changed(settings, "advantage", eps=eps))
    if advantage.clip is not None:
        yield Variant("advantage.clip has no effect", changed(settings, "advantage", clip=None))
    yield Variant("the mean is that of the whole batch, not of the group", settings, worths=_batch_mean(settings))
    groups = sorted({row.problem for row in rehearsal.rows})
    names_of = {row.problem: row.task for row in rehearsal.rows}
    for shift in (1, -1):
        who = "next" if shift == 1 else "previous"
        yield Variant(f"advantages are handed to the {who} rollout of the group", settings, worths=_rolled(shift))
        yield Variant(f"advantages are handed to the {who} group", settings, worths=_moved(shift))
    says = "the advantages of a group are dealt in reverse order"
    yield Variant(says, settings, worths=lambda w, _p: [_with(x, list(x.values)[::-1]) for x in w])
    for a, b in combinations(groups, 2):
        where = "" if names_of[a] == names_of[b] else f" ({names_of[a]} and {names_of[b]})"
        yield Variant(
            f"the advantages of groups {a + 1} and {b + 1} are exchanged{where}", settings, worths=_swapped(a, b)
        )


def _micros(update: Update) -> int:
    return max(len({p.micro for passes in update.passes.values() for p in passes}), 1)


_Worths = Callable[[list[Worth], Sequence[Problem]], list[Worth]]


def _with(worth: Worth, values: list[float]) -> Worth:
    return Worth(values, None if worth.tokens is None else worth.tokens, worth.balance)


def _batch_mean(settings: Settings) -> _Worths:
    advantage = every_key.advantage(settings.grpo.advantage)

    def worths(made: list[Worth], problems: Sequence[Problem]) -> list[Worth]:
        new_worths = []
        for worth, problem in zip(made, problems, strict=True):
            own = [a.reward for a in problem.attempts]
            middle = mean([a.reward for p in problems if p.task == problem.task for a in p.attempts])
            spread = deviation(own, advantage.ddof) + advantage.eps if advantage.kind == "grpo" else 1.0
            alike = max(own) == min(own)
            new_worths.append(_with(worth, [0.0 if alike else (x - middle) / spread for x in own]))
        return new_worths

    return worths


def _rolled(shift: int) -> _Worths:
    return lambda made, _problems: [_with(w, list(np.roll(w.values, shift))) for w in made]


def _moved(shift: int) -> _Worths:
    return lambda made, _problems: [made[(i - shift) % len(made)] for i in range(len(made))]


def _swapped(a: int, b: int) -> _Worths:
    def worths(made: list[Worth], _problems: Sequence[Problem]) -> list[Worth]:
        new_worths = list(made)
        new_worths[a], new_worths[b] = made[b], made[a]
        return new_worths

    return worths


def _of_losses(settings: Settings) -> Iterator[Variant]:
    loss = every_key.loss(settings.grpo.loss)
    for kind in get_args(Loss.model_fields["kind"].annotation):
        if kind != loss.kind:
            low, high = (None, None) if loss.clip_low is None and loss.clip_high is None else clip_range(loss)
            other = changed(settings, "loss", kind=kind, clip_low=low, clip_high=high, dual_clip=None)
            yield Variant(f"the surrogate is that of loss.kind: {kind}, not {loss.kind}", other)
    if loss.kind == "sapo":
        says = "tau_pos and tau_neg are exchanged"
        yield Variant(says, changed(settings, "loss", tau_pos=loss.tau_neg, tau_neg=loss.tau_pos))


def _of_rewards(settings: Settings) -> Iterator[Variant]:
    for name, task in settings.tasks.items():
        if task.shaping == Shaping():
            continue
        pieces: dict[str, Shaping] = {"shaping": Shaping()}
        for piece, none in (("length", None), ("zscore", None), ("scale", 1.0), ("clip", None)):
            if getattr(task.shaping, piece) != none:
                pieces[f"shaping.{piece}"] = task.shaping.model_copy(update={piece: none})
        for piece, shaping in pieces.items():
            tasks = {**settings.tasks, name: replace(task, shaping=shaping)}
            yield Variant(f"{piece} of task {name} has no effect", replace(settings, tasks=tasks))


def _of_tasks(settings: Settings) -> Iterator[Variant]:
    tasks = settings.tasks
    yield Variant(
        "the tasks' weights have no effect",
        replace(settings, tasks={name: replace(task, weight=1.0) for name, task in tasks.items()}),
    )
    fixed = settings.grpo.model_copy(update={"task_weights": FixedWeights()})
    yield Variant(
        "the tasks' weights stay where they were: grpo.task_weights has no effect", replace(settings, grpo=fixed)
    )
    for a, b in combinations(tasks, 2):
        swapped = {a: replace(tasks[a], weight=tasks[b].weight), b: replace(tasks[b], weight=tasks[a].weight)}
        yield Variant(f"the weights of tasks {a} and {b} are exchanged", replace(settings, tasks={**tasks, **swapped}))
