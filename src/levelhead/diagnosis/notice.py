"""Events in words for a terminal: one line as they happen, and a block of all of them at the end of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language
from levelhead.message import Message, Phrase, chinese, in_language_of
from levelhead.terminal import safe

LOUD = ("critical", "warning")
"""Severities that a person must know of, the graver first."""

MOST_CHARACTERS = 400
"""Characters of a message that are shown; the whole of it is in ``events.jsonl``."""

_ONCE, _OFTEN = Message("once", "一次"), Message("{count} times", "{count} 次")
_AT, _FROM_TO = Message("step {first}", "第 {first} 步"), Message("steps {first} to {last}", "第 {first} 到 {last} 步")
_CHANGE = Message("to change: {to_do}", "建议修改：{to_do}")

_MOST_DIGITS = 10**100
"""Whole numbers beyond it are not spelt out; Python refuses to, from 4300 digits on."""


def printable(text: object, most: int = MOST_CHARACTERS) -> str:
    """Return text as one line that is safe to print: no escape sequence, no control character, at most ``most`` long.

    Messages may quote what a policy, an endpoint or a data file wrote, and a terminal would obey it.
    """
    whole = "a number of many digits" if isinstance(text, int) and abs(text) > _MOST_DIGITS else str(text)
    line = " ".join(safe(whole).split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def notice(event: Mapping[str, Any], to_do: str = "", times: int = 1, language: Language = "en") -> str:
    """Return one line on an event: its step, severity and code, what was seen, what was done and what to change.

    Args:
        event: A line of ``events.jsonl``.
        to_do: What to change (see :mod:`levelhead.diagnosis.remedies`).
        times: How often an event of this code and severity has been seen, this one included.
        language: Of the reader.
    """
    if language == "zh":
        return _notice_in_chinese(event, to_do, times)
    action = event.get("action")
    did = f" [{printable(action, 40)}]" if action and action != "warn" else ""
    again = f" ({times} times so far)" if times > 1 else ""
    change = f" To change: {to_do}." if to_do else ""
    seen = printable(event.get("message", "")).rstrip()
    dot = "" if seen.endswith((".", "!", "?")) or not change else "."
    return f"step {_step(event)}: {_name(event)}{did}: {seen}{again}{dot}{change}"


def _notice_in_chinese(event: Mapping[str, Any], to_do: str, times: int) -> str:
    action = event.get("action")
    did = f" [{said(printable(action, 40))}]" if action and action != "warn" else ""
    again = f"（至今 {times} 次）" if times > 1 else ""
    head = f"{said(printable(event.get('severity', ''), 20))} {printable(event.get('code', ''), 80)}"
    seen = message_of(event, "zh").rstrip()
    dot = "" if seen.endswith((".", "!", "?", "。", "\uff01", "\uff1f")) or not to_do else "。"
    change = f"建议修改：{chinese(to_do)}。" if to_do else ""
    return f"第 {_step(event)} 步，{head}{did}\uff1a{seen}{again}{dot}{change}"


@dataclass(frozen=True, slots=True)
class Told:
    """All events of one code and severity.

    Attributes:
        code: The finding's code, or the trainer's own.
        severity: ``critical`` or ``warning``.
        count: How many there were.
        first: Step of the first.
        last: Step of the last.
        message: What the last one said.
    """

    code: str
    severity: str
    count: int
    first: int
    last: int
    message: Phrase

    def lines(self, language: Language = "en", to_do: str = "") -> list[str]:
        """Two or three lines for the block at the end of a run, with what to change."""
        often = _ONCE if self.count == 1 else _OFTEN
        when = _AT if self.first == self.last else _FROM_TO
        colon, comma = (": ", ", ") if language == "en" else (" ", "，")
        parts = (often(count=self.count), when(first=self.first, last=self.last))
        head = f"{said(self.severity, language)}{colon}{self.code}"
        head = comma.join([head, *(in_language_of(part, language) for part in parts)])
        change = [f"  {in_language_of(_CHANGE(to_do=to_do), language)}"] if to_do else []
        return [head, f"  {in_language_of(self.message, language)}", *change]


def gather(
    events: Iterable[Mapping[str, Any]], standing: Collection[str] | None = None
) -> tuple[list[Told], list[str]]:
    """Return what a person must know of a run's events, once a code and severity, the gravest first.

    Args:
        events: Lines of ``events.jsonl``.
        standing: Codes of the findings that the closing diagnosis holds, which say what the guard's look at the same
            numbers said on the way; ``None`` where there is no diagnosis.

    Returns:
        The events, and in a few words each what a look had seen that no longer stands at the end.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    passed: dict[str, int] = {}
    for event in events:
        severity, code = str(event.get("severity")), printable(event.get("code"), 80)
        if severity not in LOUD:
            continue
        if standing is None or not _is_look(event):
            groups.setdefault((severity, code), []).append(event)
        elif code not in standing:
            passed[code] = _step(event)
    notices = [
        Told(
            code,
            severity,
            len(seen),
            min(map(_step, seen)),
            max(map(_step, seen)),
            Phrase(message_of(seen[-1]), message_of(seen[-1], "zh")),
        )
        for (severity, code), seen in groups.items()
    ]
    notices.sort(key=lambda one: (LOUD.index(one.severity), one.first))
    return notices, [f"{code} (step {step})" for code, step in passed.items()]


def message_of(event: Mapping[str, Any], language: Language = "en") -> str:
    """Return the message of a line of ``events.jsonl``, safe to print; events of before have no Chinese."""
    if language == "zh":
        return printable(event["message_zh"]) if "message_zh" in event else said(printable(event.get("message", "")))
    return printable(event.get("message", ""))


def _is_look(event: Mapping[str, Any]) -> bool:
    """Whether an event says what the guard's detectors saw, and nothing that was done."""
    evidence = event.get("evidence")
    return event.get("action") == "warn" and isinstance(evidence, Mapping) and "first_step" in evidence


def _name(event: Mapping[str, Any]) -> str:
    return f"{printable(event.get('severity', ''), 20)}: {printable(event.get('code', ''), 80)}"


def _step(event: Mapping[str, Any]) -> int:
    step = event.get("step")
    return int(step) if isinstance(step, int | float) and abs(step) < 1e15 else 0
