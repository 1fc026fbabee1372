"""What the policy wrote: held-out prompts before and after, groups sampled while training, the first steps' tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from levelhead.report.cards import STAGE_COLOURS, STAGE_NAMES
from levelhead.report.charts import task_colour
from levelhead.report.markup import esc, figure, fold, pairs, pill, signed, tag
from levelhead.report.reading import EVAL_STAGES, Row, Run, step_of
from levelhead.report.series import number
from levelhead.terminal import counted

PER_TASK = 8
"""Prompts shown a task."""

OPEN = 3
"""How many of them are open to the eye; the rest is one click away."""

_LONGEST = 6000
_FOLD_PROMPT = 420


def before_and_after(run: Run) -> str:
    """Show the same held-out prompts at every stage, side by side; empty where no stage kept samples."""
    stages = [stage for stage in EVAL_STAGES if run.samples.get(stage)]
    if not stages:
        return ""
    by_prompt = {stage: {_key(row): row for row in reversed(run.samples[stage])} for stage in stages}
    tasks = list(dict.fromkeys(str(row.get("task")) for stage in stages for row in run.samples[stage]))
    parts = []
    for task in tasks:
        keys = [_key(row) for row in run.samples[stages[-1]] if str(row.get("task")) == task]
        shared = [k for k in dict.fromkeys(keys) if all(k in by_prompt[stage] for stage in stages)] or list(
            dict.fromkeys(keys)
        )
        cards = [
            _comparison([(s, by_prompt[s][k]) for s in stages if k in by_prompt[s]], why)
            for k, why in _choose(shared, [by_prompt[stage] for stage in stages[-2:]])
        ]
        index = run.tasks.index(task) if task in run.tasks else 0
        dot = tag("i", cls="dot", style=f"background:var(--{task_colour(index)[1:]})")
        more = fold(f"{len(cards) - OPEN} more", *cards[OPEN:]) if len(cards) > OPEN else ""
        parts.append(tag("h3", dot, esc(task), cls="sub") + "".join(cards[:OPEN]) + more)
    return "".join(parts)


def while_training(run: Run) -> str:
    """Show one group of rollouts of the first and of the last few sampled steps, best reward first."""
    names = list(run.rollouts)
    step_names = names if len(names) <= 4 else [names[0], *names[-3:]]
    folds = []
    for name in step_names:
        rows = run.rollouts[name]
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault(_key(row), []).append(row)
        if not groups:
            continue
        # The group with the most contrast says most about what the rewards reward.
        group = max(groups.values(), key=lambda g: (_spread(g), len(g)))
        ranked = sorted(group, key=lambda row: -(number(row.get("reward")) or 0.0))
        step = step_of(ranked[0])
        counts = f"{counted(len(rows), 'rollout')} kept, {counted(len(groups), 'prompt')}"
        summary = f"Step {step} {tag('span', counts, cls='muted')}"
        answers = tag("div", *[_answer("", row) for row in ranked[:8]], cls="answers")
        folds.append(fold(summary, _prompt(ranked[0]), answers, cls="sample"))
    return "".join(folds)


def _choose(
    keys: Sequence[tuple[str, str]], stages: Sequence[dict[tuple[str, str], Row]]
) -> list[tuple[tuple[str, str], str]]:
    """Pick prompts to show: the largest gain and loss between the last two stages, the rest as they were drawn."""

    def change(k: tuple[str, str]) -> float:
        ends = [number(stage.get(k, {}).get("reward")) for stage in stages]
        return 0.0 if len(ends) < 2 or ends[0] is None or ends[1] is None else ends[1] - ends[0]

    label_by_key: dict[tuple[str, str], str] = {}
    ranked = sorted(keys, key=change)
    if len(stages) == 2 and ranked:
        if change(ranked[-1]) > 0:
            label_by_key[ranked[-1]] = "largest gain"
        if change(ranked[0]) < 0:
            label_by_key[ranked[0]] = "largest loss"
    for k in keys:
        if len(label_by_key) >= PER_TASK:
            break
        label_by_key.setdefault(k, "")
    return list(label_by_key.items())


def _comparison(columns: Sequence[tuple[str, Row]], why: str) -> str:
    last = columns[-1][1]
    label = f"{last.get('prompt_id', '')}"
    head = tag("span", esc(label), cls="muted id") + (
        pill(why, "good" if why.endswith("gain") else "bad") if why else ""
    )
    rewards = [number(row.get("reward")) for _, row in columns]
    if len(rewards) > 1 and rewards[-1] is not None and rewards[-2] is not None:
        change = rewards[-1] - rewards[-2]
        head += tag("span", esc(signed(change)) if change else "no change", cls="muted")
    answers = tag("div", *[_answer(stage, row) for stage, row in columns], cls="answers")
    return tag("article", tag("div", head, cls="sample-head"), _prompt(last), answers, cls="sample")


def _prompt(row: Row) -> str:
    text = _cut(row.get("prompt"))
    body = tag("pre", esc(text), cls="prompt")
    if len(text) <= _FOLD_PROMPT:
        return body
    return fold(tag("span", esc(text[:_FOLD_PROMPT].rsplit(None, 1)[0] + " \u2026"), cls="prompt"), body, cls="long")


def _answer(stage: str, row: Row) -> str:
    reward = number(row.get("reward"))
    marks = []
    if stage:
        colour = STAGE_COLOURS[stage].removeprefix("$")
        marks.append(
            tag("span", tag("i", cls="dot", style=f"background:var(--{colour})"), STAGE_NAMES[stage], cls="who")
        )
    if reward is not None:
        marks.append(
            pill(f"{reward:.2f}".replace("-", "\u2212"), "good" if reward > 0.5 else "bad" if reward <= 0 else "")
        )
    if (advantage := number(row.get("advantage"))) is not None and not stage:
        marks.append(tag("span", "advantage ", esc(signed(advantage)), cls="muted"))
    if row.get("valid") is False:
        marks.append(pill("did not parse", "warn"))
    if row.get("finish") == "length":
        marks.append(pill("cut off", "warn"))
    parts = row.get("parts")
    small = [f"{name} {figure(value, 3)}" for name, value in parts.items()] if isinstance(parts, dict) else []
    paid = row.get("turn_rewards")
    small += [f"by turn {', '.join(figure(value, 3) for value in paid)}"] if isinstance(paid, list) else []
    length = number(row.get("length"))
    small += [counted(length, "token")] if length is not None else []
    text = _cut(row.get("completion"))
    body = tag("pre", _written(text))
    return tag(
        "div",
        tag("div", *marks, cls="marks"),
        body,
        tag("div", esc(" · ".join(small)), cls="muted parts"),
        cls="answer",
    )


def _written(text: str) -> str:
    """Escape a completion; white space that a reader would take for an empty box is said in words."""
    if not text.strip():
        return tag("span", f"({len(text)} characters of white space)" if text else "(nothing)", cls="muted")
    pieces = re.split(r"(\n{4,})", text)
    return "".join(
        tag("span", f"\n({len(piece)} line breaks)\n", cls="muted") if index % 2 else esc(piece)
        for index, piece in enumerate(pieces)
    )


def _cut(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n[{len(text) - _LONGEST} more characters]"


def _key(row: Row) -> tuple[str, str]:
    return str(row.get("task")), str(row.get("prompt_id"))


def _spread(group: Sequence[Row]) -> float:
    rewards = [r for row in group if (r := number(row.get("reward"))) is not None]
    return max(rewards) - min(rewards) if rewards else 0.0


_SIDES = (("context_end", "prompt ends"), ("completion_start", "answer starts"), ("completion_end", "answer ends"))
_NUMBERS = (("entropy", "entropy (nats)"), ("top_probability", "top probability"), ("gap", "gap of the top two logits"))


def first_steps(run: Run) -> str:
    """Return a fold a step: lengths and endings of each task, and the tokens of a few samples."""
    return "".join(_first_step(entry, opened=index == 0) for index, entry in enumerate(run.diagnostics))


def _first_step(entry: dict[str, Any], *, opened: bool) -> str:
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
    return tag("h3", esc(name)) + pairs(fields) + "".join(_sample_tokens(row) for row in rows)


def _sample_tokens(row: dict[str, Any]) -> str:
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
