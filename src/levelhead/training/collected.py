"""What was sampled and scored, and what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from levelhead.records import Group, Prompt
from levelhead.tasks.metering import JudgeUse, RewardTally, merge


@dataclass(slots=True)
class Collected:
    """Scored groups and what they cost.

    Attributes:
        groups: In the order of the prompts; a group may be smaller than asked where rollouts were dropped.
        sample_s: Seconds spent sampling tokens.
        score_s: Seconds spent scoring answers: rewards, judges.
        env_s: Seconds spent in environments: episodes of several turns.
        dropped: Rollouts that were asked for and are left out: without a score, or given up.
        episodes: Rollouts that were scored, of one turn or several.
        unscored: Rollouts that their task, judge or environment left without a score.
        judges: What the judges of the tasks have done and cost, by task.
        tallies: What the reward functions of the tasks have logged and could not rate, by task.
        values: Metrics of the sampling itself.
        timings: The same, of what differs between two runs of one seed.
        temperature: At which a batch was sampled.
        behind: Updates that the trained weights are ahead of those that sampled a batch.
        sampler_weights: Those weights, where a guard may go back to them and they are no longer the trained ones.
        prompts: All that a batch was sampled from, in order, those of groups that gave way to others included.
    """

    groups: list[Group]
    sample_s: float = 0.0
    score_s: float = 0.0
    env_s: float = 0.0
    dropped: int = 0
    episodes: int = 0
    unscored: int = 0
    judges: dict[str, JudgeUse] = field(default_factory=dict)
    tallies: dict[str, RewardTally] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    behind: int = 0
    sampler_weights: list[Tensor] | None = None
    prompts: list[Prompt] = field(default_factory=list)

    def add_cost(self, other: Collected) -> None:
        """Count what another collection cost as part of this one."""
        self.sample_s += other.sample_s
        self.score_s += other.score_s
        self.env_s += other.env_s
        self.dropped += other.dropped
        self.episodes += other.episodes
        self.unscored += other.unscored
        self.judges = merge(self.judges, other.judges)
        self.tallies = merge(self.tallies, other.tallies)


def together(parts: Sequence[Collected], groups: Sequence[Group] = ()) -> Collected:
    """Return several collections as one; seconds are those of the slowest, as they were sampled side by side.

    Args:
        parts: What was sampled.
        groups: Theirs, in order; those of the parts one after another unless given.
    """
    whole = Collected([*groups] if groups else [group for part in parts for group in part.groups])
    for part in parts:
        whole.add_cost(part)
        whole.behind = max(whole.behind, part.behind)
    for name in ("sample_s", "score_s", "env_s"):
        setattr(whole, name, max((getattr(part, name) for part in parts), default=0.0))
    return whole
