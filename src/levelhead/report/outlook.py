"""The first screen of the page: what was learnt by stratum against the baseline, what was not, what to do next.

What to do next follows from the run's own figures: its findings' remedies first, then what it has not learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis.findings import CATALOGUE, Language
from levelhead.diagnosis.verdict import compare, items_needed, stratum_words
from levelhead.errors import InputError
from levelhead.report.language import say
from levelhead.report.markup import esc, show, signed, tag
from levelhead.report.reading import Row, Run, step_of
from levelhead.report.scores import CLEAR, Standing, errors_of, stages_of, standings
from levelhead.report.series import number, series

MOST = 3
"""Things to do that are named."""
_MOST_KEYS = 3
_LATE = 1 / 3
"""Part of the saved groups, and of the steps, that is the end of a run."""
_FEWEST_GROUPS = 8
_FEWEST_STEPS = 12
_MUCH = 1 / 3
"""Share of groups with contrast from which there is enough to learn from."""
_SOLVED = 0.5
_NEAR_PERFECT = 0.95
"""Rate of right answers beyond which no stratum is called the weakest."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do after this run.

    Attributes:
        text: Why, with the run's own figures, and what.
        settings: Keys of the recipe and their new values.
        command: To run; empty where there is none.
    """

    text: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    @property
    def code(self) -> str:
        """Settings as they stand in a recipe, or the command."""
        return self.command or ", ".join(f"{key}: {_yaml(value)}" for key, value in self.settings.items())


def next_steps(run: Run, language: Language = "en") -> list[Step]:
    """Return at most three things to do, the most urgent first; never none for a run with a held-out score."""
    rows = standings(run)
    ways = [*_go_on(run, language), *_earlier(run, language), *_findings(run, language)]
    ways += _fallen(run, rows, language)
    ways += [*_at_chance(run, rows, language), *_whole(run, language)]
    if not ways:
        ways = [*_weakest(run, rows, language), *_nothing_wrong(run, rows, language)]
    elif len(ways) < MOST - 1 and not any(row.fell or row.at_chance for row in rows):
        ways += _weakest(run, rows, language)
    return ways[:MOST]


def _go_on(run: Run, language: Language) -> Iterator[Step]:
    """A run that did not come to its end."""
    steps = _setting(run, "grpo", "steps")
    done = max((step_of(row) for row in run.lines("grpo")), default=0)
    acted = any(event.get("action") == "stop" and event.get("severity") == "critical" for event in run.events)
    ended = any("grpo" in entry for entry in run.summary_tasks.values())
    if steps and not ended and not acted and done < steps and run.folder is not None:
        command = f"levelhead train {run.folder}/recipe.yaml --resume --out {run.folder}"
        yield Step(say("not-ended", language, step=done, steps=int(steps)), command=command)


def _earlier(run: Run, language: Language) -> Iterator[Step]:
    """A run whose best policy is of before its last stage."""
    best = run.summary.get("best")
    evaluated = {stage for entry in run.summary_tasks.values() for stage in entry}
    if not isinstance(best, Mapping) or best.get("stage") not in ("start", "sft") or "grpo" not in evaluated:
        return
    policy = say(f"policy-of-{best['stage']}", language, step=int(best.get("step", 0)))
    yield Step(say("best-earlier", language, policy=policy), command=f"levelhead export {run.folder}")


def _findings(run: Run, language: Language) -> Iterator[Step]:
    """What the doctor makes of the run, in the order of its diagnosis; what follows from another is left out."""
    if run.folder is None:
        return
    # Imported late: the doctor is the heaviest part of a page.
    from levelhead.doctor.report import examine

    try:
        report = examine(run.folder)
    except InputError:  # no row of training yet
        return
    for finding in report.diagnosis.leading:
        for remedy in report.remedies(finding, language)[:1]:
            title = CATALOGUE[finding.code].title.get(language)
            text = say("finding", language, title=title, confidence=finding.confidence, why=remedy["why"])
            yield Step(text, dict(list(remedy["set"].items())[:_MOST_KEYS]))


def _fallen(run: Run, rows: Sequence[Standing], language: Language) -> Iterator[Step]:
    """The stratum that has fallen furthest since the stage before."""
    fallen = [row for row in rows if row.fell]
    if not fallen:
        return
    row = min(fallen, key=lambda one: errors_of(one.change) if one.change else 0.0)
    assert row.before is not None  # noqa: S101 - it has fallen from somewhere
    before, score = signed(row.before.value), signed(row.score.value)
    text = say("fell", language, where=_where(row, language), before=before, score=score)
    alone = not row.stratum or len([one for one in rows if one.task == row.task]) < 2
    if alone or _task(run, row.task).get("balance") is True:
        yield Step(
            _joined(language, text, say("go-back", language)),
            {"eval.every": 25} if not _setting(run, "eval", "every") else {},
        )
    else:
        yield Step(_joined(language, text, say("weigh", language)), {"tasks[].balance": True})


def _at_chance(run: Run, rows: Sequence[Standing], language: Language) -> Iterator[Step]:
    """The strata that stand where a constant answer does, the furthest below first, by what their groups show."""
    unmeasured = [row for row in rows if row.constant is None]
    for row in sorted((row for row in rows if row.at_chance and not row.fell), key=_gap)[:2]:
        constant = row.constant.value if row.constant else 0.0
        where = _where(row, language)
        text = say("at-chance", language, where=where, score=signed(row.score.value), constant=signed(constant))
        reason, settings = _by_groups(run, row, language)
        yield Step(_joined(language, text, reason), settings)
    if unmeasured and not any(row.constant for row in rows):
        settings = {"eval.constant": True} if run.setting("eval", "constant") is False else {}
        yield Step(say("measure", language, task=unmeasured[0].task), settings)


def _by_groups(run: Run, row: Standing, language: Language) -> tuple[str, dict[str, Any]]:
    """What the last saved groups of a stratum say, and what follows from it."""
    everything, own = _late_groups(run, row)
    steps, size = _setting(run, "grpo", "steps"), _setting(run, "grpo", "group_size")
    longer = {"grpo.steps": int(2 * steps)} if steps else {}
    if not own:
        text = say("groups-none", language, n=len(everything)) if everything else ""
        return text, {"tasks[].balance": True} if text and row.stratum else {}
    best = max(max(group) for group in [*everything, *own])
    live = sum(max(group) > min(group) for group in own)
    failed = sum(max(group) == min(group) < best for group in own)
    if live >= _MUCH * len(own):
        return say("groups-signal", language, live=live, n=len(own)), longer
    if 2 * failed >= len(own) - live:
        demonstrated = _setting(run, "sft", "steps")
        settings = {"sft.steps": int(2 * demonstrated)} if demonstrated else {"sft.steps": 20}
        return say("groups-failed", language, failed=failed, n=len(own)), settings
    larger = {"grpo.group_size": int(2 * size)} if size else {}
    return say("groups-alike", language, alike=len(own) - live, n=len(own)), larger


def _late_groups(run: Run, row: Standing) -> tuple[list[list[float]], list[list[float]]]:
    """Rewards of the groups saved late in training: of a task, and of a stratum of it.

    Late is the last third of the saved steps, and as much more as it takes for eight groups.
    """
    names = [name for name in run.rollouts if name.startswith("grpo-")]
    late = set(names[-max(1, round(_LATE * len(names))) :])
    groups: dict[tuple[str, str], list[Row]] = {}
    for name in reversed(names):
        for one in run.rollouts[name]:
            if str(one.get("task")) == row.task:
                groups.setdefault((name, str(one.get("prompt_id"))), []).append(one)
    everything: list[list[float]] = []
    mine: list[list[float]] = []
    for (name, _), group in groups.items():
        own = [reward for one in group if (reward := number(one.get("reward"))) is not None]
        strata = group[0].get("strata")
        if len(own) < 2 or (row.stratum and not isinstance(strata, dict)):
            continue
        if name in late or len(everything) < _FEWEST_GROUPS:
            everything.append(own)
        if _is_of(row.stratum, strata) and (name in late or len(mine) < _FEWEST_GROUPS):
            mine.append(own)
    return everything, mine


def _is_of(stratum: str, strata: Any) -> bool:
    key, _, value = stratum.partition("=")
    return not stratum or (isinstance(strata, dict) and str(strata.get(key)) == value)


def _whole(run: Run, language: Language) -> Iterator[Step]:
    """What the end of training and the size of the evaluation say of each task."""
    lines = run.lines("grpo")
    steps = _setting(run, "grpo", "steps")
    solved = series(lines, metric.ALL_SOLVED).finite
    late = solved[-max(1, len(solved) // 4) :]
    if len(solved) >= _FEWEST_STEPS and fmean(late) >= _SOLVED:
        settings = {} if _setting(run, "grpo", "dynamic_sampling") else {"grpo.dynamic_sampling": 2}
        yield Step(say("solved", language, steps=len(late), share=fmean(late)), settings)
    for task, entry in run.summary_tasks.items():
        stages = stages_of(entry)
        curve = series(lines, metric.REWARD_BY_TASK.of(task)).finite
        half = len(curve) // 4
        before, after = curve[-2 * half : -half], curve[-half:]
        if len(curve) >= _FEWEST_STEPS and steps and _risen(before, after):
            means = {"before": signed(fmean(before)), "after": signed(fmean(after))}
            text = say("rising", language, task=task, **means, steps=2 * half)
            yield Step(text, {"grpo.steps": int(2 * steps)})
        if len(stages) < 2 or not stages[-1].n:
            continue
        change = stages[-1].main.beside(stages[-2].main)
        if compare(change.value, change.se, stages[-1].n) == "undecided":
            needed = items_needed(errors_of(change), stages[-1].n)
            moved = {"change": signed(change.value), "error": f"{change.se or 0:.3f}"}
            text = say("unclear", language, task=task, **moved, n=stages[-1].n, needed=needed)
            yield Step(text, {"eval.final_items": needed})


def _risen(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether a mean is above another by twice the error of the difference (Welch)."""
    if min(len(before), len(after)) < 2:
        return False
    error = math.hypot(stdev(before) / math.sqrt(len(before)), stdev(after) / math.sqrt(len(after)))
    return fmean(after) - fmean(before) > CLEAR * error > 0


def _weakest(run: Run, rows: Sequence[Standing], language: Language) -> Iterator[Step]:
    """The stratum with the fewest right answers, unless nearly all are right."""
    with_rate = [row for row in rows if row.rate is not None]
    weakest = min(with_rate, key=lambda row: row.rate or 0.0, default=None)
    if weakest is not None and weakest.rate is not None and weakest.rate < _NEAR_PERFECT:
        groups, settings = _by_groups(run, weakest, language)
        text = say("weakest", language, where=_where(weakest, language), rate=weakest.rate)
        yield Step(_joined(language, text, groups), settings)


def _nothing_wrong(run: Run, rows: Sequence[Standing], language: Language) -> Iterator[Step]:
    """The next sensible steps of a run with which nothing is wrong."""
    lead = min(
        (row for row in rows if row.above), key=lambda row: errors_of(row.over) if row.over else 0.0, default=None
    )
    if lead is not None and lead.over is not None:
        where, seed = _where(lead, language), _setting(run, "seed")
        text = say("confirm", language, errors=errors_of(lead.over), where=where)
        yield Step(text, {} if seed is None else {"seed": int(seed) + 1})
    if rows and run.folder is not None:
        yield Step(say("export", language), command=f"levelhead export {run.folder}")


def _joined(language: Language, *sentences: str) -> str:
    return (" " if language == "en" else "").join(filter(None, sentences))


def _where(row: Standing, language: Language) -> str:
    if not row.stratum:
        return say("where-task", language, task=row.task)
    return say("where", language, task=row.task, stratum=stratum_words(row.stratum, language))


def _gap(row: Standing) -> float:
    return row.over.value if row.over is not None else 0.0


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else show(value)


def _task(run: Run, name: str) -> Mapping[str, Any]:
    tasks = run.recipe.get("tasks")
    sections = [one for one in tasks if isinstance(one, dict)] if isinstance(tasks, list) else []
    return next((one for one in sections if name in (one.get("name"), one.get("kind"))), {})


def _setting(run: Run, *path: str) -> float | None:
    return number(run.setting(*path))


MOST_ROWS = 5
"""Strata of a column."""


def outlook(run: Run, language: Language = "en") -> str:
    """Return three columns as markup: learnt, not learnt, what to do next; empty for a run without a held-out score."""
    rows = standings(run)
    steps = next_steps(run, language)
    if not rows and not steps:
        return ""
    learnt = sorted((row for row in rows if row.learnt), key=lambda row: -errors_of(row.over) if row.over else 0.0)
    rest = sorted((row for row in rows if not row.learnt), key=lambda row: row.over.value if row.over else 0.0)
    ways = [tag("li", esc(step.text), tag("code", esc(step.code)) if step.code else "", cls="way") for step in steps]
    columns = [
        _column("learnt", learnt, "none-learnt", language),
        _column("not-learnt", rest, "none-left", language),
        tag("div", tag("h2", esc(say("next", language))), tag("ol", *ways), cls="next"),
    ]
    return tag("section", *(columns if rows else columns[2:]), cls="outlook", id="outlook")


def _column(kind: str, rows: Sequence[Standing], nothing: str, language: Language) -> str:
    head = tag("h2", esc(say(kind, language)), tag("span", esc(say(f"{kind}-hint", language)), cls="muted"))
    shown = [_row(row, language) for row in rows[:MOST_ROWS]]
    more = say("more", language, n=len(rows) - MOST_ROWS) if len(rows) > MOST_ROWS else ""
    body = tag("ul", *shown) if shown else tag("p", esc(say(nothing, language)), cls="muted")
    return tag("div", head, body, tag("p", esc(more), cls="muted") if more else "", cls=kind)


def _row(row: Standing, language: Language) -> str:
    name = stratum_words(row.stratum, language) if row.stratum else say("all-items", language)
    if row.constant is None:
        beside = say("unmeasured", language)
    else:
        as_well = not (row.learnt or row.fell or row.at_chance)
        words = "undecided" if row.side == "undecided" else "as-well" if as_well else "constant"
        beside = say(words, language, constant=signed(row.constant.value))
    if row.fell and row.before is not None:
        beside += ", " if language == "en" else "\uff0c"
        beside += say("was", language, before=signed(row.before.value))
    return tag(
        "li",
        tag("span", tag("b", esc(row.task)), " ", esc(name)),
        tag("span", tag("b", esc(signed(row.score.value))), tag("span", esc(beside), cls="muted"), cls="figures"),
    )
