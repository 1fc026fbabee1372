"""A workflow as a drawing: boxes, frames and lines with their places, so that a page only has to put them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from levelhead.terminal import counted

if TYPE_CHECKING:
    from levelhead.contrib.workflow.language import Node

MOST_BOXES = 200
"""Operators of a workflow that is drawn."""
LONGEST = 4000
"""Characters of one."""

_HEIGHT, _LETTER, _SIDE = 30, 7.6, 10
_GAP, _BETWEEN, _PAD, _TITLE = 28, 16, 12, 18


@dataclass(slots=True)
class _Part:
    """A piece of the drawing, its top left corner at the origin.

    Attributes:
        width: In pixels.
        height: In pixels.
        axis: Height at which lines come in and go out.
        goes_on: Whether a line goes out; none does behind ``done``.
        boxes: Operators: ``x``, ``y``, ``width``, ``height``, ``label``, ``kind``.
        frames: Loops: the same.
        lines: ``points``, ``label``, and whether an ``arrow`` ends it.
    """

    width: float
    height: float
    axis: float
    goes_on: bool = True
    boxes: list[dict[str, Any]] = field(default_factory=list)
    frames: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def put(self, part: _Part, x: float, y: float) -> None:
        """Take over what another part draws, moved."""
        self.boxes += [{**box, "x": box["x"] + x, "y": box["y"] + y} for box in part.boxes]
        self.frames += [{**frame, "x": frame["x"] + x, "y": frame["y"] + y} for frame in part.frames]
        self.lines += [{**line, "points": [[a + x, b + y] for a, b in line["points"]]} for line in part.lines]

    def line(self, *points: tuple[float, float], label: str = "", arrow: bool = True) -> None:
        self.lines.append({"points": [list(point) for point in points], "label": label, "arrow": arrow})


def drawing(text: object) -> dict[str, Any] | None:
    """Return a workflow's drawing as plain data; ``None`` for what is no workflow or too large to be drawn.

    Steps run from left to right; the branches of a parallel block and the two ways of a conditional stand one above
    the other, a loop is a frame around its body.

    Args:
        text: In the workflow language.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        return None
    try:
        from levelhead.contrib.workflow.language import WorkflowError, calls, parse
    except ModuleNotFoundError:  # the light install has no parser
        return None
    try:
        tree = parse(text)
    except WorkflowError:
        return None
    if sum(1 for _ in calls(tree)) > MOST_BOXES:
        return None
    part = _part(tree)
    shapes = {"boxes": part.boxes, "frames": part.frames, "lines": part.lines}
    return {"width": part.width, "height": part.height, **shapes}


def _part(node: Node) -> _Part:
    from levelhead.contrib.workflow.language import Call, Chain, Conditional, Done, Loop, Parallel
    from levelhead.contrib.workflow.operators import OPERATORS

    match node:
        case Call(operator):
            role = OPERATORS.get(operator)
            return _box(operator, role.role.value if role else "")
        case Done():
            part = _box("done", "done")
            part.goes_on = False
            return part
        case Chain(steps):
            return _row([_part(step) for step in steps])
        case Parallel(branches):
            return _fork([_part(branch) for branch in branches], [""] * len(branches))
        case Conditional(test, fault, clear):
            return _row([_part(test), _fork([_part(fault), _part(clear)], ["fault", "no fault"])], arrows=False)
        case Loop(body, times):
            return _frame(_part(body), f"at most {counted(times, 'time')}")


def _box(label: str, kind: str) -> _Part:
    width = round(_LETTER * len(label) + 2 * _SIDE)
    box = {"x": 0, "y": 0, "width": width, "height": _HEIGHT, "label": label, "kind": kind}
    return _Part(width, _HEIGHT, _HEIGHT / 2, boxes=[box])


def _row(parts: Sequence[_Part], *, arrows: bool = True) -> _Part:
    """Parts from left to right, their axes on one height."""
    gap = _GAP if arrows else 0
    axis = max(part.axis for part in parts)
    height = axis + max(part.height - part.axis for part in parts)
    width = sum(part.width for part in parts) + gap * (len(parts) - 1)
    row = _Part(width, height, axis, goes_on=parts[-1].goes_on)
    x = 0.0
    for i, part in enumerate(parts):
        row.put(part, x, axis - part.axis)
        x += part.width
        if arrows and i < len(parts) - 1:
            if part.goes_on:
                row.line((x, axis), (x + gap, axis))
            x += gap
    return row


def _fork(parts: Sequence[_Part], labels: Sequence[str]) -> _Part:
    """Parts one above the other, a line to each and from each that goes on."""
    room = max(_GAP, *(round(_LETTER * len(label)) + 14 if label else 0 for label in labels))
    inner = max(part.width for part in parts)
    height = sum(part.height for part in parts) + _BETWEEN * (len(parts) - 1)
    goes_on = any(part.goes_on for part in parts)
    fork = _Part(room + inner + (_GAP if goes_on else 0), height, height / 2, goes_on=goes_on)
    y = 0.0
    for part, label in zip(parts, labels, strict=True):
        at = y + part.axis
        fork.put(part, room, y)
        fork.line((0, fork.axis), (8, at), (room, at), label=label)
        if part.goes_on:
            end = room + inner
            fork.line((room + part.width, at), (end + 8, at), (end + _GAP, fork.axis), arrow=False)
        y += part.height + _BETWEEN
    return fork


def _frame(body: _Part, label: str) -> _Part:
    """A part within a frame that says how often it runs."""
    width = max(body.width + 2 * _PAD, round(_LETTER * len(label)) + 2 * _PAD)
    frame = _Part(width, body.height + _TITLE + 2 * _PAD, body.axis + _TITLE + _PAD)
    box = {"x": 0, "y": 0, "width": width, "height": frame.height, "label": label, "kind": "loop"}
    frame.frames.append(box)
    x = (width - body.width) / 2
    frame.put(body, x, _TITLE + _PAD)
    frame.line((0, frame.axis), (x, frame.axis), arrow=False)
    if body.goes_on:
        frame.line((x + body.width, frame.axis), (width, frame.axis), arrow=False)
    return frame
