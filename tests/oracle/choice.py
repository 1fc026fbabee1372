"""Choice: prompts are sampled in the shares that the recipe means, and redraws keep the groups that teach something.

The run's own stream and queue of groups are shown made-up outcomes with known consequences; nothing is sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelhead.preflight.check import LEVEL
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Learnability
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.rollout.draws import derive, generator
from levelhead.tasks.base import Task
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.curriculum import make_stream
from oracle.chance import binomial_p
from oracle.context import PreflightContext
from oracle.queue import in_step
from oracle.result import Check, judged

TAKEN = 96
"""Prompts that are taken from the stream."""
SINGLES = 200
"""Prompts that are taken one by one, to see which items of a stratum are sampled."""
AGE = 0.5
"""Half-lives that pass after the first outcomes."""


def check_choice(context: PreflightContext) -> Iterator[Check]:
    """Show outcomes to the stream and the queue of groups, and count what they choose."""
    grpo = context.grpo
    if grpo is None:
        return
    if isinstance(grpo.curriculum, Learnability):
        yield _learnability(context, grpo.curriculum)
    else:
        yield _weights(context)
    yield _redraws(context)


def made_up(prompt: Prompt, rewards: Sequence[float]) -> Group:
    """Return a group whose rollouts have these rewards, and as their success whether they are 1.

    Their tokens mean nothing, and no two rollouts are of one length: as in a run, length is no contrast.
    """
    rollouts = []
    for i, reward in enumerate(rewards):
        ids, zeros = (0,) * (i + 1), (0.0,) * (i + 1)
        score = Score(reward, {"success": float(reward >= 1)})
        rollouts.append(Rollout(prompt.id, (Turn((), ids, zeros, zeros, "stop"),), score))
    return Group(prompt, tuple(rollouts))


def _stream(context: PreflightContext) -> Any:
    tasks = list(context.setup.tasks.values())
    weights = [context.setup.weights[task.name] for task in tasks]
    grpo = context.grpo
    return make_stream(tasks, weights, derive(context.seed, "choice"), grpo.curriculum if grpo else None)


def _weights(context: PreflightContext) -> Check:
    """Over any stretch each task has its share of the prompts, within one, and outcomes change nothing."""
    stream, total = _stream(context), sum(context.setup.weights.values())
    prompts: list[Prompt] = []
    for step, n in enumerate((1, 7, 16, TAKEN - 24), start=1):
        new = stream.take(n)
        prompts += new
        stream.learn([made_up(prompt, (1.0, 1.0)) for prompt in new], step)
    counts = Counter(prompt.task for prompt in prompts)
    wanted = {name: len(prompts) * weight / total for name, weight in context.setup.weights.items()}
    evidence = {"prompts": len(prompts), "drawn": dict(counts), "meant": wanted}
    return _shares(evidence, counts, wanted, 1.0 + 1e-9, None)


def _shares(
    evidence: dict[str, Any], counts: Mapping[str, int], wanted: Mapping[str, float], within: float, extra: str | None
) -> Check:
    off = max(wanted, key=lambda name: abs(counts.get(name, 0) - wanted[name]))
    wrong, n = extra, evidence["prompts"]
    if abs(counts.get(off, 0) - wanted[off]) > within:
        wrong = f"{counts.get(off, 0)} of {n} prompts are drawn from {off!r}, and {wanted[off]:.1f} are meant"
    shown = ", ".join(f"{name} {counts.get(name, 0)}" for name in list(wanted)[:6])
    fix = "draw in proportion to tasks[].weight, and with a curriculum to what the recent outcomes leave to be learnt"
    return judged("sampling/shares", wrong, f"{n} prompts are drawn as meant: {shown}", evidence, fix)


def _learnability(context: PreflightContext, config: Learnability) -> Check:
    """Strata are sampled by their weight times 4 p (1 - p) of their recent success, and items within them as well.

    Every other stratum is shown half successes, the others successes alone, at step 1; then the outcomes age.
    """
    stream, strata = _stream(context), _strata(context)
    shown: dict[str, tuple[float, float]] = {}
    for i, (name, members) in enumerate(strata.items()):
        rewards = (1.0, 0.0, 1.0, 0.0) if i % 2 else (1.0, 1.0, 1.0, 1.0)
        stream.learn([made_up(prompt, rewards) for prompt in members[:2]], 1)
        shown[name] = (sum(rewards) * min(2, len(members)), 4.0 * min(2, len(members)))
    late = 1 + round(AGE * config.half_life)
    stream.learn([], late)
    decay = 0.5 ** ((late - 1) / config.half_life)
    weights = {}
    for name, (wins, tries) in shown.items():
        p = (decay * wins + 1) / (decay * tries + 2)
        weights[name] = _meant(context, name, strata) * max(4 * p * (1 - p), config.floor)
    total = sum(weights.values())
    wanted = {name: TAKEN * weight / total for name, weight in weights.items()}
    where = {(p.task, p.id): name for name, members in strata.items() for p in members}
    counts = Counter(where[p.task, p.id] for p in stream.take(TAKEN))
    items, extra = _items(context, config, strata, late)
    evidence = {"prompts": TAKEN, "drawn": dict(counts), "meant": wanted, "items": items, "level": LEVEL}
    return _shares(evidence, counts, wanted, 1.0 + 1e-6, extra)


def _items(
    context: PreflightContext, config: Learnability, strata: Mapping[str, Sequence[Prompt]], late: int
) -> tuple[dict[str, float], str | None]:
    """Items that are always solved must be sampled less often than those solved half of the time, by a known factor."""
    name, members = max(strata.items(), key=lambda item: len(item[1]))
    if len(members) < 2:
        return {}, None
    stream = _stream(context)
    half, rest = members[: len(members) // 2], members[len(members) // 2 :]
    alone = [made_up(p, (1.0, 0.0) * 16) for p in half] + [made_up(p, (1.0,) * 32) for p in rest]
    stream.learn(alone, late)
    wins, tries = 16.0 * len(half) + 32.0 * len(rest), 32.0 * len(members)
    middle = (wins + 1) / (tries + 2)
    weights = [max(4 * p * (1 - p), config.floor) for p in ((16 + middle) / 33, (32 + middle) / 33)]
    share = weights[0] * len(half) / (weights[0] * len(half) + weights[1] * len(rest))
    unsure = {(p.task, p.id) for p in half}
    inside = {(p.task, p.id) for p in members}
    drawn = [(p.task, p.id) for _ in range(SINGLES) for p in stream.take(1)]
    drawn = [key for key in drawn if key in inside]
    seen = sum(key in unsure for key in drawn)
    p_value = binomial_p(seen, len(drawn), share)
    numbers = {"unsure": seen, "of": len(drawn), "meant": share * len(drawn), "p_value": p_value}
    if p_value >= LEVEL:
        return numbers, None
    return numbers, (
        f"of {len(drawn)} draws in {name!r} {seen} are items that succeed half of the time, and "
        f"{share * len(drawn):.0f} are meant (p = {p_value:.1g})"
    )


def _strata(context: PreflightContext) -> dict[str, list[Prompt]]:
    """Training prompts by task, those of a mixture by kind."""
    prompts_by_stratum: dict[str, list[Prompt]] = {}
    for name, task in context.setup.tasks.items():
        for prompt in task.prompts("train", 0):
            kind = task.kind_of(prompt)
            prompts_by_stratum.setdefault(f"{name}/{kind}" if kind else name, []).append(prompt)
    return prompts_by_stratum


def _meant(context: PreflightContext, stratum: str, strata: Mapping[str, Sequence[Prompt]]) -> float:
    """Share of a stratum by the recipe's weights alone."""
    task: Task = context.setup.tasks[strata[stratum][0].task]
    weight = context.setup.weights[task.name]
    if not task.shares:
        return weight
    return weight * task.shares.get(stratum.removeprefix(f"{task.name}/"), 1.0)


class _Told(Collector):
    """Gives every prompt that it is asked for the outcome that was thought up for it."""

    def __init__(self, context: PreflightContext, lively: Sequence[bool]) -> None:
        super().__init__(context.setup.tasks, context.codec, context.generator, context.loop)
        self._lively = list(lively)
        self.groups: list[Group] = []

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Return groups with contrast or without, as planned."""
        groups = []
        for prompt in prompts:
            lively = self._lively[len(self.groups) % len(self._lively)]
            self.groups.append(made_up(prompt, [float(lively and i % 2) for i in range(k)]))
            groups.append(self.groups[-1])
        return Collected(groups)

    def answers(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return nothing: there are no answers."""
        return {}


def _redraws(context: PreflightContext) -> Check:
    """No group without contrast is kept while one with contrast was dropped, and batches are whole."""
    grpo = context.grpo
    assert grpo is not None
    name, wanted, rounds = "sampling/redraws", 8, 2
    small = grpo.model_copy(
        update={"group_size": 2, "batch_size": 2 * wanted, "dynamic_sampling": min(grpo.dynamic_sampling, rounds)}
    )
    wrong = None
    rng = generator(context.seed, "redraws")
    evidence: dict[str, Any] = {"batches": 0, "kept_without_contrast": 0, "dropped_with_contrast": 0, "redrawn": 0}
    for share in (0.1, 0.4, 0.8):
        collector = _Told(context, (rng.random(64) < share).tolist())
        most = max(small.dynamic_sampling, 1)  # a guard may ask for redraws that the recipe does without
        queue = in_step(_stream(context), collector, small, context.seed, context.policy)
        batch = queue.next(1, context.controls, redraws=1).groups
        batch_counts = Counter(map(id, batch))
        flat = sum(len(set(group.rewards)) == 1 for group in batch)
        lost = sum(len(set(group.rewards)) > 1 and id(group) not in batch_counts for group in collector.groups)
        live = sum(len(set(group.rewards)) > 1 for group in collector.groups)
        evidence["batches"] += 1
        evidence["kept_without_contrast"] += flat
        evidence["dropped_with_contrast"] += lost if flat else 0
        evidence["redrawn"] += len(collector.groups) - wanted
        if len(batch) != wanted or batch_counts.total() != len(batch_counts):
            wrong = f"a batch of {wanted} groups has {len(batch)} after redraws, {len(batch_counts)} of them different"
        elif any(id(group) not in set(map(id, collector.groups)) for group in batch):
            wrong = "a batch holds groups that nobody drew"
        elif flat and lost:
            wrong = f"{flat} groups without contrast are kept and {lost} with contrast were drawn and dropped"
        elif flat and len(collector.groups) < wanted + most:
            wrong = f"{flat} of {wanted} groups have no contrast, and none were drawn in their place"
        elif live < wanted and flat != wanted - live:
            wrong = f"{live} groups with contrast were drawn, and {wanted - flat} of them are in the batch"
    fix = "fill up with further prompts first, keep every group with contrast, and only then those without"
    right = f"redraws keep every group with contrast ({evidence['redrawn']} redrawn in {evidence['batches']} batches)"
    return judged(name, wrong, right, evidence, fix)
