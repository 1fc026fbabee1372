"""The first steps from close by: where prompts end and answers start, how answers end, how sure the policy is."""

from __future__ import annotations

from typing import Any

from levelhead.report.markup import esc, figure, fold, pairs, tag
from levelhead.report.reading import Run

_SIDES = (("context_end", "prompt ends"), ("completion_start", "answer starts"), ("completion_end", "answer ends"))
_NUMBERS = (("entropy", "entropy (nats)"), ("top_probability", "top probability"), ("gap", "gap of the top two logits"))


def first_steps(run: Run) -> str:
    """Return a fold a step: lengths and endings of each task, and the tokens of a few samples."""
    return "".join(_step(entry, opened=index == 0) for index, entry in enumerate(run.diagnostics))


def _step(entry: dict[str, Any], *, opened: bool) -> str:
    tasks = entry.get("tasks")
    task_entries = tasks if isinstance(tasks, dict) else {}
    body = "".join(
        _task(str(name), task_entry) for name, task_entry in task_entries.items() if isinstance(task_entry, dict)
    )
    return fold(f"Step {esc(entry.get('step', '?'))}", body, opened=opened)


def _task(name: str, entry: dict[str, Any]) -> str:
    fields = {key.replace("_", " "): value for key, value in entry.items() if key != "samples"}
    samples = entry.get("samples")
    rows = [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []
    return tag("h3", esc(name)) + pairs(fields) + "".join(_sample(row) for row in rows)


def _sample(row: dict[str, Any]) -> str:
    sides = {label: _tokens(row.get(key)) for key, label in _SIDES}
    numbers = {
        label: f"{figure(row.get(f'{key}_first'))} at the first token, {figure(row.get(f'{key}_mean'))} on average"
        for key, label in _NUMBERS
        if row.get(f"{key}_first") is not None  # a completion of no tokens has no first one
    }
    ends = {"prompt": row.get("prompt_id"), "reward": row.get("reward"), "finish": row.get("finish")}
    return pairs({**ends, **sides, **numbers})


def _tokens(side: Any) -> str:
    """Return tokens as quoted texts, so that spaces and line breaks are seen."""
    tokens = [token for token in side if isinstance(token, dict)] if isinstance(side, list) else []
    return " ".join(repr(str(token.get("text", ""))) for token in tokens)
