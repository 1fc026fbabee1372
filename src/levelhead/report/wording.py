"""What of a page is a run's own: names that no translation touches, and sentences that the run's figures give again."""

from __future__ import annotations

from levelhead import metrics as metric
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.verdict import said
from levelhead.preflight.explain import stored
from levelhead.report.language import Translator
from levelhead.report.reading import Run
from levelhead.report.scores import stages_of, strata_names, verdict_of


def translator_of(run: Run, language: Language) -> Translator:
    """Return what exchanges the words of a run's page."""
    if language == "en":
        return Translator(language)
    events = {str(event.get("message")): str(event["message_zh"]) for event in run.events if "message_zh" in event}
    return Translator(language, _names(run), {**events, **_checks(run, language), **_verdicts(run, language)})


def _names(run: Run) -> set[str]:
    """Names of tasks, strata, metrics, parts of rewards, events and checks."""
    names = set(run.tasks)
    # A name of one word may be a word of ours as well; as a metric's it stands in no sentence.
    names |= {key for row in run.metrics for key in row if not key.isalpha()}
    names |= {key.split("/")[-2] for key in names if key.startswith(metric.PART_MEAN.prefix) and key.count("/") > 1}
    for entry in run.summary_tasks.values():
        stages = stages_of(entry)
        strata = strata_names(stages)
        # A table lets a stratum break behind its sign of equality, so that its value stands alone.
        names |= {*strata, *(part for name in strata for part in name.partition("="))}
        names |= {name for stage in stages for name in stage.metrics}
    return names | {str(row.get(key)) for rows, key in ((run.events, "code"), (run.checks, "name")) for row in rows}


def _checks(run: Run, language: Language) -> dict[str, str]:
    """What checks said, and what they advised."""
    sentences: dict[str, str] = {}
    for check in run.checks:
        english = str(check.get("message") or ""), str(check.get("fix") or "")
        sentences |= {a: b for a, b in zip(english, stored(check, language), strict=True) if a}
    return sentences


def _verdicts(run: Run, language: Language) -> dict[str, str]:
    verdicts = {task: verdict_of(run.summary, task) for task in run.summary_tasks}
    return {
        verdict.text: said(verdict.text, run.summary_tasks[task], language)
        for task, verdict in verdicts.items()
        if verdict is not None
    }
