"""The gradient merger that a recipe asks for, and the event of its monitor switching it."""

from __future__ import annotations

from collections.abc import Sequence

from levelhead import metrics as metric
from levelhead.objective.aggregation import ConflictMonitor, GradientMerger, MergeReport
from levelhead.policy.policy import Policy
from levelhead.recipe.objective import MergeSection
from levelhead.recipe.training import Grpo
from levelhead.records import Event
from levelhead.rollout.draws import derive
from levelhead.training.ranks import Ranks

SWITCHED = "merge-switched"
"""Code of the event that tells of a switch."""


def make_merger(
    policy: Policy, config: Grpo, seed: int, tasks: Sequence[str] = (), ranks: Ranks | None = None
) -> GradientMerger:
    """Return the gradient merger that a recipe asks for, with its conflict monitor."""
    merge = config.merge
    return GradientMerger(
        policy.parameters,
        merge.make(),
        memory=merge.memory,
        scale=merge.scale,
        monitor=ConflictMonitor(merge.monitor_every, merge.switch_after, merge.conflict_below),
        switch_to=merge.make_switch(),
        seed=derive(seed, "merge"),
        tasks=tasks,
        reduce=ranks.reduces(policy) if ranks else None,
        total=policy.total,
    )


def switch_events(step: int, report: MergeReport, merge: MergeSection) -> list[Event]:
    """Return the event that tells of a switch, where the monitor has just switched merging on; else nothing.

    Args:
        step: Step of the run.
        report: Of the update's merge.
        merge: The ``grpo.merge`` section.
    """
    if not report.switched:
        return []
    prefix = metric.MERGE_COSINE.prefix
    cosines = {name.removeprefix(prefix): value for name, value in report.metrics.items() if name.startswith(prefix)}
    pair, cosine = min(cosines.items(), key=lambda item: item[1])
    message = (
        f"the gradients of {' and '.join(pair.split('/', 1))} pull apart (cosine {cosine:.2f}, below "
        f"{merge.conflict_below:g}, for {merge.switch_after} looks in a row): {merge.switch_to} takes over from the "
        f"sum. grpo.merge.kind: {merge.switch_to} does so from the start, grpo.merge.switch_after: 0 never"
    )
    evidence = {
        **{f"{prefix}{name}": value for name, value in cosines.items()},
        "conflict_below": merge.conflict_below,
        "looks": merge.switch_after,
        "from": report.kind,
        "to": merge.switch_to,
    }
    return [Event(step, SWITCHED, "warning", message, "adapt", evidence)]
