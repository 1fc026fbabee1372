"""What a metric is: its name, its meaning, its unit, its range, and when a run writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["sft", "grpo", "eval"]
Bounds = tuple[float, float]

ANY: Bounds = (-math.inf, math.inf)
FROM_0: Bounds = (0.0, math.inf)

UNITS: Mapping[str, Bounds] = {
    "reward": ANY,
    "share": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
    "nats": FROM_0,
    "nats/token": FROM_0,
    "tokens": FROM_0,
    "seconds": FROM_0,
    "updates": FROM_0,
    "count": FROM_0,
    "ratio": FROM_0,
    "norm": FROM_0,
    "cost": FROM_0,
    "coefficient": ANY,
    "slope": ANY,
    "text": ANY,
    "any": ANY,
}
"""The range of a unit's numbers, where a metric does not say otherwise."""

_WITH_SLASHES = frozenset({"term", "source", "arm", "stratum", "key", "value", "group", "name"})
"""Fields of a template that may hold a slash themselves."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a line of ``metrics.jsonl``.

    Attributes:
        name: The key of the line.
        meaning: What the number is, in one sentence.
        unit: A key of :data:`UNITS`.
        bounds: Smallest and largest value that a finite reading may have.
        stages: The lines that hold it.
        only: Under which condition; empty where every such line holds it.
    """

    name: str
    meaning: str
    unit: str
    bounds: Bounds
    stages: tuple[Stage, ...]
    only: str = ""

    @property
    def shown(self) -> str:
        """The name as the documentation writes it."""
        return self.name

    def matches(self, name: str) -> bool:
        """Whether a key of a line is this metric."""
        return name == self.name


@dataclass(frozen=True, slots=True)
class Family(Metric):
    """Metrics whose names differ in what is measured: one a task, a term, a part of the reward.

    ``name`` is a template such as ``kl/{task}``.
    """

    def of(self, *fields: str) -> str:
        """Return the name of one member.

        Args:
            fields: What stands for each field of the template, in order.

        Raises:
            ValueError: There are more or fewer of them than the template has fields.
        """
        wanted = self.fields
        if len(fields) != len(wanted):
            raise ValueError(f"{self.name}: wants {len(wanted)} fields ({', '.join(wanted)}), got {len(fields)}")
        return self.name.format(**dict(zip(wanted, fields, strict=True)))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the template's fields, in order."""
        return tuple(re.findall(r"{(\w+)}", self.name))

    @property
    def prefix(self) -> str:
        """What the names of all members begin with."""
        return self.name.partition("{")[0]

    @property
    def suffix(self) -> str:
        """What the names of all members end with."""
        return self.name.rpartition("}")[2]

    @property
    def shown(self) -> str:
        """The template as the documentation writes it: ``kl/<task>``."""
        return self.name.replace("{", "<").replace("}", ">")

    def matches(self, name: str) -> bool:
        """Whether a key of a line is a member."""
        parts = re.split(r"({\w+})", self.name)
        fields = {f"{{{field}}}": ".+" if field in _WITH_SLASHES else "[^/]+" for field in self.fields}
        return re.fullmatch("".join(fields.get(part, re.escape(part)) for part in parts), name) is not None


@dataclass(slots=True)
class Section:
    """Metrics that belong together, in the order in which the documentation lists them.

    Attributes:
        title: Its heading.
        stages: The lines that hold its metrics, where one does not say otherwise.
        text: What holds of all of them.
        under: Template that the names of all of them begin with; the names that are declared, and used in the code,
            leave it out.
        metrics: What has been declared so far.
    """

    title: str
    stages: tuple[Stage, ...]
    text: str = ""
    under: str = ""
    metrics: list[Metric] = field(default_factory=list)

    def metric(
        self,
        name: str,
        meaning: str,
        unit: str,
        *,
        only: str = "",
        bounds: Bounds | None = None,
        stages: tuple[Stage, ...] = (),
    ) -> str:
        """Declare a metric and return its name."""
        kind = Family if self.under else Metric
        about = (meaning, unit, bounds or UNITS[unit], stages or self.stages, only)
        self.metrics.append(kind(self.under + name, *about))
        return name

    def family(
        self,
        template: str,
        meaning: str,
        unit: str,
        *,
        only: str = "",
        bounds: Bounds | None = None,
    ) -> Family:
        """Declare metrics of one template and return what makes their names."""
        about = (meaning, unit, bounds or UNITS[unit], self.stages, only)
        self.metrics.append(Family(self.under + template, *about))
        return Family(template, *about)
