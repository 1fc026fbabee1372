"""Line shapes: how trainers write key-value pairs, whatever the keys mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from levelhead.doctor.readers.values import NUMBER, flatten

Pairs = list[tuple[str, Any]]

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RULE = re.compile(r"^[\s|+\-=:_\u2500-\u257f]+$")
"""A line of a table that only divides."""
BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s{0,8}(\d{1,15})/(\d{1,15})\s{0,8}\[")
"""A bare tqdm bar (one with a description belongs to something else): count and total."""

ANY_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\|\s{0,8}(\d{1,15})/\d{1,15}\s{0,8}\[")
"""Any tqdm bar: its count."""

_DICT_PAIR = re.compile(
    r"""['"](?P<key>[^'"\n]{1,120})['"]\s{0,40}:\s{0,40}(?P<value>'[^']*'|"[^"]*"|[^,'"{}\[\]]+|\[[^\[\]]{0,64}\])"""
)
_VALUE = rf"(?P<value>{NUMBER}(?:\s{{0,4}}(?:±|\+/-|\+-)\s{{0,4}}{NUMBER})?\s{{0,4}}(?:%|s\b|ms\b)?)"
_EQUALS = re.compile(
    rf"(?<![A-Za-z_])(?P<key>[A-Za-z_|\u4e00-\u9fff][\w/%.@|\-]{{0,120}})\s{{0,8}}=\s{{0,8}}{_VALUE}", re.IGNORECASE
)
_COLON = re.compile(
    rf"(?<![A-Za-z_])(?P<key>[A-Za-z_\u4e00-\u9fff][\w/%.@\u4e00-\u9fff\- ]{{0,60}}?)\s{{0,8}}[:\uff1a]\s{{0,8}}"
    rf"{_VALUE}(?=[\s,;|)\]}}\uff0c\u3002]|$)",
    re.IGNORECASE,
)
_SEGMENT = re.compile(rf"^[^\w]*(?P<key>[A-Za-z_][\w/%.@\- ]{{0,120}}?)\s{{0,8}}[:=]?\s{{1,8}}{_VALUE}", re.IGNORECASE)
_WORDS = re.compile(
    rf"(?<![A-Za-z_])(?P<key>[A-Za-z_][\w/%.\-]{{0,120}})\s{{1,8}}{_VALUE}(?=[\s,;|)\]]|$)", re.IGNORECASE
)
_STEP_MARK = re.compile(
    r"(?:^|[\s\[({>#=*-])(?P<kind>global[ _]step|step|iteration|iter|epoch|update|第|步骤)\s{0,8}[:=#]?\s{0,8}\[?"
    r"(?P<step>\d{1,15}(?!\d)(?:\.\d{1,15})?)",
    re.IGNORECASE,
)
_EPOCH_STEP = re.compile(
    r"\bepoch\s{0,8}:?\s{0,8}\[\s{0,8}\d{1,15}\s{0,8}/\s{0,8}\d{1,15}\s{0,8}\]\s{0,8}"
    r"\(\s{0,8}(?P<step>\d{1,15})\s{0,8}/\s{0,8}\d{1,15}\s{0,8}\)",
    re.IGNORECASE,
)
_ONLY_STEP = re.compile(r"\s{0,8}step \d{1,15}\s{0,8}", re.IGNORECASE)
_FRACTION = re.compile(r"^\s*(\d{1,15})\s*/\s*(\d{1,15})\s*$")
_TRAINABLE = re.compile(r"Trainable\s+(\d{1,15})\s{0,8}/\s{0,8}(\d{1,15})")
_DASHED = re.compile(r"(?:^|\s)step:(?P<step>\d{1,15})\s{1,8}-\s")


def step_mark(text: str) -> tuple[str, float] | None:
    """The step (or epoch) that a heading or prefix names: ``("step", 12.0)``."""
    inside = _EPOCH_STEP.search(text) if "(" in text else None
    if inside:
        return "step", float(inside.group("step"))
    marks = [(match.group("kind").lower(), float(match.group("step"))) for match in _STEP_MARK.finditer(text)]
    steps = [step for kind, step in marks if kind != "epoch"]
    if steps:
        return "step", steps[0]
    return ("epoch", marks[0][1]) if marks else None


def _settled(key: str, value: Any) -> tuple[str, Any] | None:
    """``"global_step/max_steps": "5/3766"`` becomes a step; any other fraction is no number."""
    if isinstance(value, str) and "/" in value:
        fraction = _FRACTION.match(value.strip("'\""))
        if fraction:
            return ("step", float(fraction.group(1))) if "step" in key.lower() or "iter" in key.lower() else None
    return key, value


def json_rows(text: str) -> list[Pairs] | None:
    """The rows of a JSON text: one object, a list of objects, a ``log_history``, or columns of equal length.

    Returns:
        Pairs of each row, or ``None`` where the text is not JSON.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return list(_rows_of(parsed))


def _rows_of(parsed: Any, depth: int = 0) -> Iterator[Pairs]:
    if isinstance(parsed, list):
        for item in parsed:
            if isinstance(item, (dict, list)) and depth < 4:
                yield from _rows_of(item, depth + 1)
        return
    if not isinstance(parsed, dict):
        return
    columns = {k: v for k, v in parsed.items() if isinstance(v, list) and len(v) > 1}
    lengths = {len(v) for v in columns.values()}
    # Beside the number of one step, lists are of its rollouts.
    one_step = any(isinstance(parsed.get(key), (int, float)) for key in ("step", "global_step", "iteration"))
    if (
        columns
        and not one_step
        and len(lengths) == 1
        and not any(isinstance(v[0], (dict, list)) for v in columns.values())
    ):
        names = list(columns)
        for cells in zip(*columns.values(), strict=True):
            yield list(zip(names, cells, strict=True))
        return
    for value in parsed.values():
        if isinstance(value, list) and any(isinstance(item, dict) for item in value) and depth < 4:
            yield from _rows_of(value, depth + 1)
    yield [pair for key, value in flatten(parsed) if (pair := _settled(key, value))]


def dict_pairs(text: str, closed: bool = True) -> tuple[Pairs, bool]:
    """Pairs of a flat Python or JSON dict in ``text``, bare ``nan`` and foreign constructors included.

    Args:
        text: The text between (or after) the braces.
        closed: Whether the closing brace was seen.  A pair at the very end of an unclosed dict may be cut in the
            middle of its number, and is left out.

    Returns:
        The pairs, and whether one was left out.
    """
    pairs: Pairs = []
    cut = False
    for match in _DICT_PAIR.finditer(text):
        value = match.group("value").strip()
        if not closed and match.end() >= len(text.rstrip()):
            cut = True
            continue
        pair = _settled(match.group("key").strip().rstrip("\\"), value)
        if pair:
            pairs.append(pair)
    return pairs, cut


def dashed_pairs(text: str) -> Pairs | None:
    """``step:N - key:value - key:value`` (verl); keys may hold colons, values may be ``np.float64(...)``."""
    start = _DASHED.search(text)
    if not start:
        return None
    pairs: Pairs = [("step", float(start.group("step")))]
    for item in text[start.end() :].split(" - "):
        key, colon, value = item.rpartition(":")
        if colon:
            pairs.append((key.strip(), value.strip()))
    return pairs


def piped_pairs(text: str) -> Pairs | None:
    """``Step 3 | Loss: 0.1 | Entropy 1.2 | 4.5s`` (prime-rl and many hand-written loops)."""
    segments = text.split("|")
    if len(segments) < 3 and not (len(segments) == 2 and _ONLY_STEP.fullmatch(segments[0])):
        return None
    pairs: Pairs = []
    mark = step_mark(segments[0])
    if mark:
        pairs.append(mark)
    trainable = _TRAINABLE.search(text)
    if trainable and int(trainable.group(2)):
        pairs.append(("frac_reward_zero_std", 1 - int(trainable.group(1)) / int(trainable.group(2))))
    for segment in segments:
        segment_pairs = list(_equal_or_colon(segment)) or _lone(segment)
        pairs.extend(pair for pair in segment_pairs if not (mark and pair[0].lower() in ("step", "epoch")))
    return pairs if len(pairs) >= 2 else None


def listed_pairs(text: str) -> Pairs:
    """``Iter 20: Train loss 0.1, Total rewards mean 0.8, KL 0.0`` (mlx): words and a number between commas."""
    start, colon, rest = text.partition(": ")
    mark = step_mark(start) if colon else None
    segments = (rest if mark else text).split(", ")
    if len(segments) < 4:
        return []
    pairs = [pair for segment in segments for pair in _lone(segment)]
    return [*pairs, mark] if mark and 2 * len(pairs) > len(segments) else []


def _lone(segment: str) -> Pairs:
    match = _SEGMENT.match(segment.strip())
    return [(match.group("key").strip(), match.group("value"))] if match else []


def _equal_or_colon(text: str) -> Iterator[tuple[str, Any]]:
    for match in _EQUALS.finditer(text):
        yield match.group("key"), match.group("value")
    for match in _COLON.finditer(text):
        yield match.group("key").strip(), match.group("value")


def loose_pairs(text: str, is_signal: Callable[[str], bool] = lambda _: False) -> Pairs:
    """``key=value`` and ``key: value`` anywhere in a line, with the step or epoch that a prefix names.

    Args:
        text: The line.
        is_signal: Whether a key is a signal.  What stands before a colon may be more than the key, so that shorter and
            shorter readings of it are returned, up to one that is known.
    """
    pairs: Pairs = []
    for key, value in _equal_or_colon(text):
        # "[12:00:01] INFO trainer - loss: 0.3": the key is the last word or two before the colon.
        tail = re.split(r"\s{2,}| - |\] ", key)[-1].strip()
        readings = (tail, tail.split(" ")[-1]) if " - " in key else (key, tail, tail.split(" ")[-1])
        for reading in dict.fromkeys(readings):
            pairs.append((reading, value))
            if is_signal(reading):
                break
    mark = step_mark(text)
    if mark and not any(key.lower() in ("step", "epoch", "global_step") for key, _ in pairs):
        pairs.append(mark)
    return pairs


def word_pairs(text: str) -> Pairs:
    """``iter 10 loss 0.53 reward 0.3``: a word followed by its number, the last resort."""
    return [(match.group("key"), match.group("value")) for match in _WORDS.finditer(text)]
