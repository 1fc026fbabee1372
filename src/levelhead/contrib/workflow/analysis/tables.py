"""All that is said of a run whose policy writes workflows, as numbers, JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelhead.contrib.workflow.analysis.census import Census, census
from levelhead.contrib.workflow.analysis.choices import HEADER, Choice
from levelhead.contrib.workflow.analysis.log import Batch
from levelhead.doctor.table import Table


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is said of a run whose policy writes workflows.

    Attributes:
        overall: Census of everything it wrote.
        batches: Census of each batch that is on record, by its step; batches without a number are counted from 1.
        validity: Share of valid answers by step: of every step, where the run has noted it, else of ``batches``.
        collapse: What its updates did to its validity; ``at`` are places in ``validity``.
        choices: What it chose on held-out problems, class by class; empty where that is not on record.
    """

    overall: Census
    batches: Mapping[int, Census]
    validity: Mapping[int, float]
    collapse: Collapse
    choices: tuple[Choice, ...] = ()

    @property
    def collapsed_at(self) -> list[int]:
        """Steps whose update was followed by a collapse."""
        steps = list(self.validity)
        return [steps[place] for place in self.collapse.at]

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return {
            "overall": self.overall.to_json(),
            "validity": dict(self.validity),
            "collapse": {
                "updates": self.collapse.updates,
                "collapsed": self.collapse.collapsed,
                "rate": self.collapse.rate,
                "steps": self.collapsed_at,
            },
            "choices": [choice.to_json() for choice in self.choices],
        }

    def tables(self) -> list[Table]:
        """Return the tables of a report: choices, the numbers, the most frequent workflows, operators, structures."""
        overall = self.overall
        choice_tables = [Table("Choices on held-out problems", HEADER, tuple(choice.row() for choice in self.choices))]
        return [
            *(choice_tables if self.choices else []),
            Table("Workflows", ("what", "how many"), self._numbers()),
            Table(
                "Most frequent workflows",
                ("workflow", "count", "share"),
                tuple((text, str(count), f"{share:.1%}") for text, count, share in overall.top),
            ),
            Table("Operators", ("operator", "used by"), tuple((n, f"{s:.1%}") for n, s in overall.operators.items())),
            Table("Structure", ("class", "share"), tuple((n, f"{s:.1%}") for n, s in overall.structures.items())),
        ]

    def _numbers(self) -> tuple[tuple[str, str], ...]:
        overall, collapse = self.overall, self.collapse
        rate = (
            "no update"
            if collapse.rate is None
            else f"{collapse.collapsed} of {collapse.updates} ({collapse.rate:.1%})"
        )
        return (
            ("answers", str(overall.answers)),
            ("valid workflows", f"{overall.valid} ({1.0 - overall.fallback:.1%})"),
            ("fallbacks", f"{overall.answers - overall.valid} ({overall.fallback:.1%})"),
            ("different workflows", str(overall.unique)),
            ("entropy", f"{overall.entropy:.3f} nats"),
            ("updates followed by a collapse", rate),
        )


def analyse(
    batches: Sequence[Batch], updates: Sequence[tuple[int, float, bool]] = (), choices: Sequence[Choice] = ()
) -> Analysis:
    """Analyse a run.

    Args:
        batches: What it wrote, in order; of a run that keeps samples, those.
        updates: Step, validity and whether the optimizer stepped after it, of every step; taken from ``batches``
            unless given.
        choices: What it chose on held-out problems.
    """
    censuses: dict[int, Census] = {}
    for place, batch in enumerate(batches, start=1):
        step = place if batch.step is None else batch.step
        while step in censuses:
            step += 1
        censuses[step] = census(batch.workflows)
    step_rows = list(updates) or [
        (step, batch.validity, batch.updated) for step, batch in zip(censuses, batches, strict=True)
    ]
    return Analysis(
        census(text for batch in batches for text in batch.workflows),
        censuses,
        {step: validity for step, validity, _ in step_rows},
        collapse_after_update([validity for _, validity, _ in step_rows], [updated for _, _, updated in step_rows]),
        tuple(choices),
    )


@dataclass(frozen=True, slots=True)
class Collapse:
    """How often an update was followed by a collapse.

    Attributes:
        updates: Updates with rollouts on both sides, before which there was validity to lose.
        collapsed: Those whose next rollouts had lost more than half of it.
        at: Indices of the batches whose update was followed by a collapse.
    """

    updates: int
    collapsed: int
    at: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """Return the share of updates that were followed by a collapse; ``None`` where there was no update."""
        return self.collapsed / self.updates if self.updates else None


def collapse_after_update(validity: Sequence[float], updated: Sequence[bool] | None = None) -> Collapse:
    """Count the updates whose next rollouts lost more than half of the validity they had.

    Args:
        validity: Share of valid answers of each rollout batch, in order.
        updated: Whether the optimizer stepped after each batch; after every one unless given.

    Raises:
        ValueError: The two differ in length.
    """
    stepped = [True] * len(validity) if updated is None else list(updated)
    if len(stepped) != len(validity):
        raise ValueError(f"{len(validity)} batches need {len(validity)} marks of updates, got {len(stepped)}")
    # The last batch's update has no rollouts after it, and a batch without validity has none to lose.
    judged = [i for i in range(len(validity) - 1) if stepped[i] and validity[i] > 0]
    at = tuple(i for i in judged if validity[i + 1] < validity[i] / 2)
    return Collapse(len(judged), len(at), at)
