"""What a run evaluates, saves and goes on with is the policy that it trains: looked at where each is done.

Held-out answers are sampled as the recipe asks; a checkpoint holds the weights in memory; a step begins with the
weights that the last one left; ratios start at 1; no reward lies outside of what its task declares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from safetensors import safe_open
from torch import Tensor

from levelhead.message import Message, Phrase
from levelhead.objective.numerics import local
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import LOGITS, tolerance
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Decision, Event, Group, Turn
from levelhead.tasks.base import Task
from levelhead.training.collected import Collected
from levelhead.training.curriculum import has_contrast
from levelhead.training.recompute import distorts, needs_recompute, recompute_logprobs
from levelhead.training.step_result import Update
from levelhead.training.watcher import Watcher

ANSWERS, TOKENS = 6, 2048
"""Held-out answers that are scored again, and the longest of them with its prompt."""
NATS = 1.0
"""Nats by which a greedy token lies below the likeliest one: rounding turns ties, and never this much."""
DEVIATIONS = 7.0
"""Standard deviations by which answers are more or less surprising than the policy's entropy says."""
RECORDED = 4
"""Sampled turns per step that are scored again where several updates use what the sampler recorded."""
LOOKED_AT = 8
"""Entries of each weight that are compared, spread over it."""
UNLIKELY = Message(
    "token {at} of an answer has a probability of {taken:.2g}, and the likeliest has {best:.2g}",
    "某个回答的第 {at} 个 token 概率为 {taken:.2g}，而最可能的 token 概率为 {best:.2g}",
)
MORE = Message(
    "answers are more surprising than chance allows ({deviations:+.0f} deviations)",
    "回答比偶然所允许的更出人意料（{deviations:+.0f} 个标准差）",
)
LESS = Message(
    "answers are less surprising than chance allows ({deviations:+.0f} deviations)",
    "回答比偶然所允许的更不出人意料（{deviations:+.0f} 个标准差）",
)
OTHERWISE = Message(
    "{task}: held-out answers are to be sampled at temperature {temperature:g}, and are not: {how}; scores of "
    "evaluations are those of another policy",
    "{task}：留出题的回答应以温度 {temperature:g} 采样，实际并非如此：{how}；评测得分属于另一个策略",
)
SAVED = Message(
    "checkpoint {checkpoint}: {count} weights, such as {first}, are not on disk as they are in memory: what was "
    "evaluated is not what is saved",
    "检查点 {checkpoint}：有 {count} 个权重（如 {first}）在磁盘上与内存中不同：评测的并不是所保存的",
)
MOVED = Message(
    "{count} weights, such as {first}, are not as the last step left them: something between two steps changed them "
    "(a cast, a merge, code of a reward)",
    "有 {count} 个权重（如 {first}）与上一步结束时不同：两步之间有什么改动了它们（类型转换、合并或奖励代码）",
)
APART = Message(
    "{whose} log-probabilities of sampled tokens lie {nats:.2g} nats a token from those that the sampler recorded at "
    "the same weights, and rounding explains {allowed:.2g}: ratios of this batch's later updates do not begin at 1",
    "对采样得到的 token，{whose}的对数概率与同一权重下采样端所记录的平均每 token 相差 {nats:.2g} nat，而舍入只能解释 "
    "{allowed:.2g}：这批数据后续更新的比值并不从 1 开始",
)
RECOMPUTED, OWN = Message("recomputed", "重算"), Message("the policy's own", "策略自身")
OUTSIDE = Message(
    "{task}: a reward of {reward:.4g} lies outside of the declared {low:g} to {high:g}; correct the reward, or "
    "tasks[].reward_range",
    "{task}：奖励 {reward:.4g} 超出所声明的范围 {low:g} 到 {high:g}；请更正奖励或 tasks[].reward_range",
)


@torch.no_grad()
def sampled_otherwise(policy: Policy, groups: Sequence[Group], controls: Sampling) -> Phrase | None:
    """Return how some answers differ from what their sampling controls ask for; ``None`` where they do not.

    At temperature 0 each token must be the likeliest one. At others the surprise of the tokens, minus log-probability,
    must be the entropy of their distributions on average. With penalties or a truncated distribution nothing is said.

    Args:
        policy: That sampled them.
        groups: The answers.
        controls: As the recipe has them.
    """
    greedy = controls.temperature == 0
    if policy.sharded or distorts(controls.model_copy(update=_UNCUT) if greedy else controls):
        return None
    turns = [turn for group in groups for rollout in group.rollouts for turn in rollout.turns]
    turns = sorted((turn for turn in turns if turn.completion_ids), key=_size)[:ANSWERS]
    surprise = variance = 0.0
    for turn in (turn for turn in turns if _size(turn) <= TOKENS):
        logp_tv = _distributions(policy, turn, controls.temperature or 1.0)
        logp_t = logp_tv.gather(-1, torch.tensor(turn.completion_ids, device=logp_tv.device)[:, None])[:, 0]
        gap_t = logp_tv.max(-1).values - logp_t
        if greedy and float(gap_t.max()) > NATS:
            at = int(gap_t.argmax())
            taken, best = float(logp_t[at].exp()), float(logp_tv[at].max().exp())
            return UNLIKELY(at=at + 1, taken=taken, best=best)
        p_tv = logp_tv.exp()
        entropy_t = -(p_tv * logp_tv).nan_to_num().sum(-1)
        surprise += float((-logp_t - entropy_t).sum())
        variance += float(((p_tv * logp_tv**2).nan_to_num().sum(-1) - entropy_t**2).clamp(min=0).sum())
    deviations = surprise / math.sqrt(variance) if variance > 1e-6 else 0.0
    if greedy or abs(deviations) <= DEVIATIONS:
        return None
    return (MORE if surprise > 0 else LESS)(deviations=deviations)


_UNCUT = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Cuts that leave the likeliest token where it is."""


def _size(turn: Turn) -> int:
    return len(turn.context_ids) + len(turn.completion_ids)


def _distributions(policy: Policy, turn: Turn, temperature: float) -> Tensor:
    """Return the log-probabilities of every token where the tokens of a turn were sampled, (t, v)."""
    ids = torch.tensor([[*turn.context_ids, *turn.completion_ids]], device=policy.device)
    positions = len(turn.completion_ids) + 1
    logits = policy.forward(policy.base, input_ids=ids, use_cache=False, logits_to_keep=positions).logits
    logp_tv: Tensor = (logits[0, :-1].float() / temperature).log_softmax(-1)
    return logp_tv


def saved_otherwise(policy: Policy, folder: Path) -> list[str]:
    """Return the names of the weights that a folder holds otherwise than memory, by a few entries of each.

    Args:
        policy: That was saved.
        folder: With its ``*.safetensors``, of a model or an adapter.
    """
    from peft import get_peft_model_state_dict

    if policy.sharded:
        return []
    memory: Mapping[str, Tensor] = (
        get_peft_model_state_dict(policy.model, save_embedding_layers=False)
        if policy.lora
        else policy.model.state_dict()
    )
    differing = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in (name for name in file.keys() if name in memory):  # noqa: SIM118 - no mapping
                rows = file.get_slice(name)
                own, count = memory[name].detach(), rows.get_shape()[0] if rows.get_shape() else 0
                if list(own.shape) != rows.get_shape() or (
                    count and any(_differ(rows[i : i + 1], own[i : i + 1]) for i in {0, count // 2, count - 1})
                ):
                    differing.append(name)
    return differing


def _differ(saved: Tensor, own: Tensor) -> bool:
    return not torch.equal(saved, own.cpu().to(own.dtype)) or saved.dtype != own.dtype


class HeldWeights(Watcher):
    """Reports weights that are not as a step left them when the next step changes them.

    Args:
        policy: Whose weights, the frozen ones among them.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._reported = policy, False
        self._left: list[Tensor] | None = None

    def before(self, update: Update) -> Iterable[Decision]:
        """Compare a few entries of each weight, before the first update of a step."""
        if not update.later and not self._reported and (names := self._moved()):
            self._reported = True
            text, evidence = MOVED(count=len(names), first=names[0]), {"weights": len(names), "first": names[0]}
            yield Decision("warn", Event(update.step, "weights-moved", "critical", text, "warn", evidence))

    def ended(self) -> None:
        """Remember a few entries of each weight."""
        self._left = [entries for _, entries in self._entries()]

    def _moved(self) -> list[str]:
        """Names of the weights that differ from those that are remembered."""
        if self._left is None:
            return []
        names, now = zip(*self._entries(), strict=True)
        moved = torch.stack([(a != b).any().cpu() for a, b in zip(now, self._left, strict=True)])
        return [name for name, differs in zip(names, moved.tolist(), strict=True) if differs]

    def _entries(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._policy.model.named_parameters():
            flat = local(weight).detach().flatten()
            yield name, flat[:: max(1, flat.numel() // LOOKED_AT)].clone()


class RecordedLogprobs(Watcher):
    """Reports old log-probabilities, those that ratios divide by, which are not what the sampler recorded.

    The trainer's own are compared with the record at the first update of a step alone, for the samples of that update.
    Here those of all updates are looked at: every one that was recomputed; else a few of the batch, scored again.

    Args:
        policy: What is trained.
        config: The ``grpo`` section.
    """

    def __init__(self, policy: Policy, config: Grpo) -> None:
        self._policy, self._config, self._reported = policy, config, False
        several = config.updates_per_batch * config.epochs > 1
        self._looks = several and not needs_recompute(config) and not distorts(config.sampling) and not policy.sharded

    def sampled(self, step: int, rollouts: Collected) -> Iterable[Event]:
        """Score a few turns of a batch again, before its first update."""
        if not self._looks or rollouts.behind or self._reported:
            return
        groups = [g for g in rollouts.groups if has_contrast(g, self._config)]  # no other is learnt from
        some = [replace(g, rollouts=g.rollouts[-1:]) for g in groups[:: max(1, len(groups) // RECORDED)]]
        heat, tokens = rollouts.temperature or 1.0, self._config.tokens_per_microbatch
        scores = recompute_logprobs(self._policy, some, heat, tokens)
        recorded = [turn.logprobs for group in some for turn in group.rollouts[0].turns]
        own = [turn.logprobs for (turns,) in scores for turn in turns]
        yield from self._apart(step, OWN(), zip(own, recorded, strict=True))

    def planned(self, update: Update) -> None:
        """Compare the recomputed log-probabilities of an update's samples."""
        samples = [s for members in update.plan.samples.values() for s in members if s.old is not None]
        if samples and not update.plan.behind and not self._reported:
            update.events += self._apart(update.step, RECOMPUTED(), [(s.old_logprobs, s.logprobs) for s in samples])

    def _apart(self, step: int, whose: Phrase, pairs: Iterable[tuple[Sequence[float], Sequence[float]]]) -> list[Event]:
        gaps = [abs(a - b) for old, recorded in pairs for a, b in zip(old, recorded, strict=True)]
        nats, allowed = fmean(gaps or [0.0]), tolerance(self._policy, LOGITS).mean
        self._reported = not nats <= allowed
        text, evidence = APART(whose=whose, nats=nats, allowed=allowed), {"nats": nats, "allowed": allowed}
        return [Event(step, "ratios-apart", "critical", text, "warn", evidence)] if self._reported else []


def saved_events(step: int, checkpoint: str, names: Sequence[str]) -> list[Event]:
    """Return the event of a checkpoint that holds some weights otherwise than memory; none where it holds all."""
    if not names:
        return []
    text = SAVED(checkpoint=checkpoint, count=len(names), first=names[0])
    evidence = {"checkpoint": checkpoint, "weights": len(names), "first": names[0]}
    return [Event(step, "saved-otherwise", "critical", text, "warn", evidence)]


class DeclaredRewards(Watcher):
    """Reports rewards outside of what a task declares.

    Args:
        tasks: By name.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._ranges = {name: task.reward_range for name, task in tasks.items()}

    def sampled(self, step: int, rollouts: Collected) -> Iterable[Event]:
        """Look at the rewards of a batch."""
        rewards: dict[str, list[float]] = {}
        for group in rollouts.groups:
            rewards.setdefault(group.prompt.task, []).extend(r.score.total for r in group.rollouts if r.score)
        for name, totals in rewards.items():
            declared = self._ranges.get(name)
            if declared is None or not totals:
                continue
            low, high = declared
            slack = 1e-6 * max(1.0, high - low)
            outside = [total for total in totals if not low - slack <= total <= high + slack]
            if outside:
                evidence = {"task": name, "reward": outside[0], "low": low, "high": high}
                text = OUTSIDE(**evidence)
                yield Event(step, "reward-out-of-range", "warning", text, "warn", evidence)
