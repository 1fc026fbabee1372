"""Prints what checks find as they find it, and on a terminal a bar with the time that is left."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from levelhead.preflight.check import NEEDS, Need
from levelhead.terminal import Pace, counted, say, width, wrapped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from levelhead.diagnosis.findings import Language
    from levelhead.preflight.check import Outcome, Report

_WORDS = {
    "pass": ("pass", "通过"),
    "warn": ("warning", "警告"),
    "fail": ("failure", "未通过"),
    "fix": ("fix", "解决办法"),
    "check": ("check", "检查"),
}
_COLOURS = {"pass": "32", "warn": "33", "fail": "31;1"}
_STAGES: dict[Need, tuple[str, str]] = {
    "data": ("data, template and recipe", "数据、模板和配方"),
    "rewards": ("rewards and judges", "奖励和评判模型"),
    "rollouts": ("sampling a few rollouts", "采样几条"),
    "passes": ("forward and backward passes", "前向和反向计算"),
}


class Printer:
    """A line per check that warns or fails, and at the end how many passed.

    Args:
        everything: Show checks that pass as well.
        evidence: Show the evidence of what is shown.
        language: Of the texts.
        error: Print to stderr.
        colour: Whether lines are coloured and a bar is drawn; where the stream is a terminal unless given.
    """

    def __init__(
        self,
        *,
        everything: bool = False,
        evidence: bool = False,
        language: Language = "en",
        error: bool = False,
        colour: bool | None = None,
    ) -> None:
        import sys

        stream = sys.stderr if error else sys.stdout
        self._terminal = stream.isatty() if colour is None else colour
        self._everything, self._evidence, self._language, self._error = everything, evidence, language, error
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._pace = Pace()

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            from levelhead.terminal.console import SafeConsole

            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=SafeConsole(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def progress(self, name: str, share: float) -> None:
        """Show which check runs and how much of the work is done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=share, description=name)
        elif self._bar is None and self._pace.due():
            self._say(f"{_WORDS['check'][self._language == 'zh']} {share:.0%}: {name}")

    def begin(self, need: Need) -> None:
        """Say what begins, where no bar shows it."""
        if self._bar is None:
            place = f"{NEEDS.index(need) + 1}/{len(NEEDS)}"
            self._say(f"{_WORDS['check'][self._language == 'zh']} {place}: {_STAGES[need][self._language == 'zh']} ...")

    def tell(self, outcome: Outcome) -> None:
        """Print an outcome, unless it passed."""
        if outcome.status == "pass" and not self._everything:
            return
        word = _WORDS[outcome.status][self._language == "zh"]
        message = outcome.said.text(outcome.fields, self._language)
        self._paragraph(f"{word} {outcome.name}: {message}", _COLOURS[outcome.status])
        if outcome.status != "pass" and (fix := outcome.said.way_out(outcome.fields, self._language)):
            self._paragraph(f"{_WORDS['fix'][self._language == 'zh']}: {fix}", indent=4)
        for key, value in outcome.evidence.items() if self._evidence else ():
            self._paragraph(f"{key}: {_plain(value)}", indent=4)

    def finish(self, report: Report) -> None:
        """Print how many checks passed, warned and failed."""
        counts = Counter(outcome.status for outcome in report.checks)
        if self._language == "zh":
            numbers = f"{counts['pass']} 项通过，{counts['warn']} 项警告，{counts['fail']} 项未通过"
            line = f"{numbers}，用时 {report.seconds:.1f} 秒"
        else:
            warned = counted(counts["warn"], "warning")
            line = f"{counts['pass']} passed, {warned}, {counts['fail']} failed in {report.seconds:.1f} s"
        self._say(line, _COLOURS[report.status])

    def _paragraph(self, text: str, colour: str = "", indent: int = 0) -> None:
        for line in wrapped(text, width(), indent):
            self._say(line, colour)

    def _say(self, line: str, colour: str = "") -> None:
        if self._bar is not None:
            from rich.text import Text

            styles = {"32": "green", "33": "yellow", "31;1": "bold red"}
            self._bar.console.print(Text(line, style=styles.get(colour, "")))
        else:
            say(line, error=self._error, colour=colour if self._terminal else "")


def _plain(value: Any) -> str:
    """A value of the evidence as people write it: numbers and texts as they are, lists with commas."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
