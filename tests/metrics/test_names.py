"""Nothing but the declarations writes a metric's name as a string."""

from __future__ import annotations

import re
from pathlib import Path

import levelhead
from levelhead.diagnosis.history import SIGNALS
from levelhead.metrics.base import Family
from levelhead.metrics.catalogue import METRICS

SOURCE = Path(levelhead.__file__).parent
OTHER_ROOMS = ("metrics/", "doctor/readers/", "diagnosis/catalogue/", "preflight/")
"""Where such strings are something else: the declarations, other trainers' names, texts, names of checks."""
OTHER_THINGS = {
    ("doctor/trust.py", "eval/"),  # how columns of any trainer's log may begin
    ("doctor/trust.py", "rewards/"),
    ("training/coefficients.py", "kl/{task}"),  # a controller's key in a checkpoint
    ("integrations/trl/sections.py", "entropy_coef"),  # an argument of TRL's
    ("integrations/trl/observer.py", "eval/"),  # what TRL writes as eval_
    ("tasks/judges/member.py", "judge/{question.id}/{attempt}"),  # what a call's random numbers are derived from
}
SINGLE = {metric.name for metric in METRICS if not isinstance(metric, Family)}
UNMISTAKABLE = {name for name in SINGLE if "/" in name or "_" in name} - {"learning_rate"}
"""Names that mean nothing else anywhere: ``reward`` or ``learning_rate`` are words of other sections too."""
BEGINNINGS = {metric.prefix for metric in METRICS if isinstance(metric, Family)}
ONLY_OTHERS_LOG = SIGNALS.keys() - SINGLE


def any_of(names: set[str]) -> str:
    return "|".join(map(re.escape, sorted(names)))


LITERAL = re.compile(f'"({any_of(UNMISTAKABLE)})"|"((?:{any_of(BEGINNINGS)})[^"\\s]*)"')


def names_in(source: str) -> list[str]:
    """Metrics' names, and f-strings that begin as one, among the string literals of a source."""
    return [name for pair in LITERAL.findall(source) for name in pair if name and name not in ONLY_OTHERS_LOG]


def test_no_metric_is_written_out() -> None:
    literals = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(OTHER_ROOMS):
            literals += [(name, text) for text in names_in(path.read_text(encoding="utf-8"))]
    assert sorted(set(literals) - OTHER_THINGS) == []


def test_a_name_that_is_written_out_is_seen() -> None:
    assert names_in('values["grad_norm"] = 1.0') == ["grad_norm"]
    assert names_in('values[f"kl/{task}"] = 1.0') == ["kl/{task}"]
    assert names_in('history.matching("merge/cosine/")') == ["merge/cosine/"]
    assert names_in('values[f"eval/{task}/score"] = 1.0') == ["eval/{task}/score"]
    assert names_in('values[metric.GRAD_NORM] = history.series("reward/max")') == []
