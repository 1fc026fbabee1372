"""Draws: they come from the policy's own distribution under the recipe's controls, and each is a draw of its own."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from levelhead.preflight.check import LEVEL
from levelhead.recipe.sampling import Sampling
from levelhead.records import Group, Prompt, Score, Turn
from levelhead.rollout.draws import derive
from levelhead.training.batch_report import across, count_log_e, in_groups, mean_of_logs
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.ranks import Ranks
from oracle import plain
from oracle.chance import p_value
from oracle.context import PreflightContext
from oracle.queue import in_step
from oracle.result import Check, judged

NUMBERS = 1_600_000
"""Probabilities that are computed again, at most: completion tokens times vocabulary."""
TOKENS = 1200
"""Completion tokens that are looked at, at most."""
ROWS = 4
"""Completions of one context that are, at most."""
WARMTHS = (0.5, 0.7, 0.85, 1.2, 1.5, 2.0)
"""Factors of the temperature that draws may come from instead."""
NUCLEI, BEST, LEAST = (0.95, 0.9, 0.8), (50, 20), (0.05,)
"""Values of top_p, top_k and min_p that they may come from, which the recipe did not ask for."""
RETURNS = 2
"""Prompts that are sampled again at another step."""
SHORT = 10
"""Completion tokens of draws that are compared with others."""


def check_draws(context: PreflightContext) -> Iterator[Check]:
    """Compare draws with the policy's distribution, with each other, and with those of other steps and processes."""
    if context.grpo is None:
        return
    yield _repeats(context)
    with context.exact():
        yield _distribution(context)
        yield _processes(context)
    yield _returns(context)


def _repeats(context: PreflightContext) -> Check:
    """The rollouts of a group are sampled one by one: they are equal as often as chance makes them."""
    count, expected, pairs = in_groups(context.drawn.groups)
    log_e = count_log_e(count, expected)
    evidence = {"repeats": count, "expected": expected, "draws": pairs, "p_value": p_value(log_e), "level": LEVEL}
    wrong = None
    if p_value(log_e) < LEVEL:
        more = "the draws of a group are not independent" if count > expected else "draws that repeat are thrown away"
        wrong = (
            f"{count} of {pairs} rollouts repeat an earlier one of their group and chance would make {expected:.2g}: "
            f"{more} (p = {p_value(log_e):.1g})"
        )
    right = f"{count} of {pairs} rollouts repeat another of their group, and chance makes {expected:.2g}"
    fix = "draw every rollout of a group from a generator of its own, seeded by prompt and index, and keep all of them"
    return judged("sampling/repeats", wrong, right, evidence, fix)


@torch.no_grad()
def _distribution(context: PreflightContext) -> Check:
    """Sampled tokens are as likely as draws from the policy under the recipe's controls are, neither more nor less."""
    controls, name = context.controls, "sampling/distribution"
    if controls.temperature == 0:
        return Check(name, "pass", "greedy: nothing is drawn")
    room = min(TOKENS, NUMBERS // context.codec.vocab_size)
    rows: list[Tensor] = []
    ids: list[int] = []
    for turns in _by_context(context.turns):
        cut = [turn.completion_ids[: max(1, min(64, room // ROWS))] for turn in turns[:ROWS]]
        if room < len(cut):
            break
        room -= sum(map(len, cut))
        for told, tokens in zip(plain.many_logits(context.policy, turns[0].context_ids, cut), cut, strict=True):
            rows.append(plain.shaped(told, tokens, controls, context.codec.stop_ids))
            ids += tokens
    return _judge_distribution(name, torch.cat(rows), torch.tensor(ids, device=rows[0].device), controls)


def _judge_distribution(name: str, shaped_tv: Tensor, ids_t: Tensor, controls: Sampling) -> Check:
    """Judge sampled tokens, each given those before it, by the distributions that they should come from."""
    index_t1, warm_tv = ids_t[:, None], shaped_tv / controls.temperature
    base_tv = plain.truncated(warm_tv, controls)
    drawn_t = base_tv.gather(-1, index_t1)[:, 0].double()
    inside_t = drawn_t.isfinite()
    outside = 0
    if not bool(inside_t.all()):  # a token on the edge may fall on either side of it by rounding
        outside = int(plain.truncated(warm_tv, controls, slack=1e-3).gather(-1, index_t1)[:, 0].isneginf().sum())
    surprise_tv = (-base_tv).clamp(max=1e4)  # what cannot be sampled has weight 0
    weighted_tv = base_tv.exp() * surprise_tv
    entropy_t = weighted_tv.sum(-1).double()
    spread_t = ((weighted_tv * surprise_tv).sum(-1).double() - entropy_t**2).clamp(min=0)
    surplus, variance = float((-drawn_t - entropy_t)[inside_t].sum()), float(spread_t[inside_t].sum())
    z = surplus / math.sqrt(variance) if variance > 1e-9 else 0.0
    gains = {
        what: float((other_t - drawn_t)[inside_t].sum())
        for what, other_t in _others(shaped_tv, index_t1, controls).items()
    }
    log_e, best, n = mean_of_logs(list(gains.values())), max(gains, key=gains.__getitem__), len(ids_t)
    p, entropy = p_value(log_e), float(entropy_t[inside_t].mean())
    evidence = {
        "tokens": n,
        "mean_surprise": entropy + surplus / n,
        "entropy": entropy,
        "z": z,
        "p_value_of_z": math.erfc(abs(z) / math.sqrt(2)),
        "p_value": p,
        "level": LEVEL,
        "outside": outside,
        "fits_best": {"as": best, "nats": gains[best]},
    }
    asked = f"temperature {controls.temperature:g}, top_p {controls.top_p:g}, top_k {controls.top_k}"
    wrong = None
    if outside:
        wrong = f"{outside} of {n} drawn tokens lie outside of what {asked}, min_p {controls.min_p:g} leave"
    elif p < LEVEL:
        wrong = (
            f"drawn tokens surprise by {entropy + surplus / n:.3g} nats, and draws at the recipe's {asked} by "
            f"{entropy:.3g} (z = {z:.1f}): they are likelier at {best} (p = {p:.1g})"
        )
    right = f"{n} drawn tokens surprise as draws at {asked} do (z = {z:.1f})"
    fix = "hand the recipe's controls to the sampler, and no others: engines have defaults of their own (top_k, top_p)"
    return judged(name, wrong, right, evidence, fix)


def _others(shaped_tv: Tensor, index_t1: Tensor, controls: Sampling) -> dict[str, Tensor]:
    """Return the log-probabilities of the sampled tokens, (t,), under settings that the recipe did not ask for."""
    logp_by_setting: dict[str, Tensor] = {}
    for factor in WARMTHS:
        told_tv = plain.truncated(shaped_tv / (factor * controls.temperature), controls)
        logp_by_setting[f"temperature {factor * controls.temperature:g}"] = told_tv.gather(-1, index_t1)[:, 0].double()
    log_tv = (shaped_tv / controls.temperature).log_softmax(-1)
    own_t1 = log_tv.gather(-1, index_t1)
    ordered_tv = log_tv.exp().sort(dim=-1, descending=True).values
    mass_tv = ordered_tv.cumsum(-1)
    rank_t = (log_tv > own_t1).sum(-1)
    counts = {f"top_p {p:g}": (mass_tv - ordered_tv < p).sum(-1) for p in NUCLEI}
    counts |= {f"top_k {k}": torch.full_like(rank_t, min(k, log_tv.shape[-1])) for k in BEST}
    counts |= {f"min_p {p:g}": (ordered_tv >= p * ordered_tv[:, :1]).sum(-1) for p in LEAST}
    for what, count_t in counts.items():
        least_t1 = ordered_tv.gather(-1, count_t[:, None] - 1)
        count_t = (ordered_tv >= least_t1).sum(-1)  # tokens that tie with the last one are inside too
        share_t = mass_tv.gather(-1, count_t[:, None] - 1)[:, 0].log().double()
        logp_by_setting[what] = torch.where(rank_t < count_t, own_t1[:, 0].double() - share_t, -torch.inf)
    return logp_by_setting | {"no truncation": own_t1[:, 0].double()}


def _by_context(turns: Sequence[Turn]) -> list[list[Turn]]:
    turns_by_context: dict[tuple[int, ...], list[Turn]] = {}
    for turn in turns:
        if turn.completion_ids:
            turns_by_context.setdefault(turn.context_ids, []).append(turn)
    return sorted(turns_by_context.values(), key=lambda members: len(members[0].context_ids))  # short ones cost least


class _Same:
    """A stream that hands out the same prompts at every step."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = list(prompts)

    def take(self, n: int) -> list[Prompt]:
        """Return the first n of them, from the start again where there are fewer."""
        return [self._prompts[i % len(self._prompts)] for i in range(n)]

    def peek(self, n: int) -> list[Prompt]:
        """Return the same."""
        return self.take(n)

    def learn(self, groups: Sequence[Group], step: int) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


class _Unscored(Collector):
    """Draws as the run's collector does, and gives every rollout the same score."""

    def __init__(self, context: PreflightContext, ranks: Ranks | None = None) -> None:
        super().__init__(context.setup.tasks, context.codec, context.generator, context.loop, ranks)
        self.drawn: list[list[Group]] = []

    async def _collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Draw k rollouts of each prompt."""
        ready = [self.render(prompt) for prompt in prompts]
        completions = await self._draw(ready, k, controls, seed)
        groups = [
            Group(prompt, tuple(self._rollout(prompt, [drawn]).scored(Score(0.0)) for drawn in group))
            for prompt, group in zip(ready, completions, strict=True)
        ]
        self.drawn.append([*groups])  # the collection that the groups go to grows
        return Collected(groups)


def _returns(context: PreflightContext) -> Check:
    """A prompt that returns, in a batch, in a redraw or at another step, gets other draws than before."""
    grpo = context.grpo
    assert grpo is not None
    k = min(grpo.group_size, 3)
    by_tokens = {p.token_ids: p for task_prompts in context.prompts.values() for p in task_prompts[:1]}
    prompts = list(by_tokens.values())[:RETURNS]
    n = len(prompts) + 1  # the first prompt stands in each batch twice
    few = grpo.model_copy(update={"group_size": k, "batch_size": k * n, "dynamic_sampling": 1})
    collector = _Unscored(context)
    queue = in_step(_Same(prompts), collector, few, derive(context.seed, "returns"), context.policy)
    for step in (1, 2):
        queue.next(step, _short(context))
    visits: dict[str, list[Group]] = {}
    for group in itertools.chain.from_iterable(collector.drawn):
        visits.setdefault(group.prompt.id, []).append(group)
    log_es, equal, expected = [0.0], 0, 0.0
    for groups in visits.values():
        for before, after in itertools.combinations(groups, 2):
            count, chance = across(before.rollouts, after.rollouts)
            log_es.append(count_log_e(count, chance))
            equal, expected = equal + count, expected + chance
    log_e = mean_of_logs(log_es)
    evidence = {
        "visits": sum(map(len, visits.values())),
        "repeats": equal,
        "expected": expected,
        "p_value": p_value(log_e),
        "level": LEVEL,
    }
    wrong = None
    if p_value(log_e) < LEVEL:
        wrong = (
            f"{equal} completions are drawn again, index for index, when their prompt returns (in a batch, a redraw, a "
            f"later step), and chance would make {expected:.2g} (p = {p_value(log_e):.1g}): seeds repeat"
        )
    right = f"prompts that return get new draws ({equal} alike, chance makes {expected:.2g})"
    return judged("sampling/returns", wrong, right, evidence, "derive seeds from step, redraw and visit")


def _short(context: PreflightContext, tokens: int = SHORT) -> Sampling:
    most = min(tokens, context.controls.max_new_tokens)
    least = min(context.controls.min_new_tokens, most - 1)
    return context.controls.model_copy(update={"max_new_tokens": most, "min_new_tokens": least})


@dataclass(frozen=True)
class _OneOfTwo(Ranks):
    """One of two processes that run one after the other here, the second one first.

    Attributes:
        parts: What the processes have done, in the order in which they were asked.
    """

    parts: list[Any] = field(default_factory=list)

    def gathered(self, own: Any) -> list[Any]:
        """Return both parts, in the order of the ranks, once both are there."""
        self.parts.append(own)
        return self.parts[::-1] if len(self.parts) == self.count else [own] * self.count


def _processes(context: PreflightContext) -> Check:
    """Two processes draw together what one draws alone: no group twice, none left out, each in its place."""
    grpo = context.grpo
    assert grpo is not None
    prompts = [p for task_prompts in context.prompts.values() for p in task_prompts[:2]][:4]
    k, seed, controls = min(grpo.group_size, 2), derive(context.seed, "processes"), _short(context, 6)
    alone = _Unscored(context).run(prompts, k, controls, seed).groups
    parts: list[Any] = []
    for rank in (1, 0):
        ranks = _OneOfTwo(rank, 2, parts=parts)
        together = _Unscored(context, ranks).run(prompts, k, controls, seed).groups
    names = [group.prompt.id for group in together]
    # In half precision a number that falls between two tokens tips by rounding: there the first token must do.
    tokens = None if context.policy.compute_dtype == torch.float32 else 1
    pairs = zip(alone, together, strict=False)
    other = sum(a != b for one, two in pairs for a, b in zip(_tokens(one, tokens), _tokens(two, tokens), strict=False))
    twice = [name for name, times in Counter(names).items() if times > [p.id for p in prompts].count(name)]
    evidence = {"prompts": len(prompts), "groups": len(together), "other_draws": other, "twice": len(twice)}
    drawn = sum(len(group.rollouts) for group in alone)
    wrong = None
    if twice:
        wrong = f"two processes draw the same prompt, {twice[0]!r}: they repeat each other's work"
    elif names != [prompt.id for prompt in prompts]:
        wrong = f"of {len(prompts)} prompts two processes return {len(names)}, and not in their order"
    elif 2 * other > drawn:
        wrong = f"{other} of {drawn} rollouts are other draws with two processes than with one"
    right = f"two processes draw together the {len(prompts)} groups that one draws alone"
    fix = "give process r every n-th prompt, and put the groups back in the order of the prompts"
    return judged("sampling/processes", wrong, right, evidence, fix)


def _tokens(group: Group, most: int | None) -> list[tuple[int, ...]]:
    return [rollout.turns[0].completion_ids[:most] for rollout in group.rollouts]
