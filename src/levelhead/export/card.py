"""The model card of an exported run: scores by stratum beside the best constant answer, findings, and the recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.ranking import VERDICTS
from levelhead.diagnosis.verdict import STAGES
from levelhead.doctor.report import examine
from levelhead.errors import InputError
from levelhead.report.reading import Run, read_run

_MARKED = re.compile(r"([\\`*_{}\[\]<>#|])")
_LONGEST = 160


def card(folder: Path, checkpoint: str, origin: str, base: str | None, *, adapter: bool, precision: str) -> str:
    """Return the text of ``README.md``.

    What a policy, a judge or a data file wrote is escaped.

    Args:
        folder: Of the run.
        checkpoint: Name of the checkpoint that is exported.
        origin: Stage and step of the policy in it, in words.
        base: Hub name or folder of the model that was trained; ``None`` for one from random weights.
        adapter: Whether the folder holds an adapter alone.
        precision: Of the scores and of the weights, in words.
    """
    run = read_run(folder)
    begun = _plain(base) if base else "random weights"
    lines = [
        *_front(run, base, adapter=adapter),
        f"# {_plain(run.name)}",
        "",
        f"Trained with Levelhead {_version()} from {begun}; checkpoint `{checkpoint}` ({origin}).",
        "",
        *_use(adapter=adapter),
        *_scores(run, precision),
        *_findings(folder, run),
        "## Recipe",
        "",
        "```yaml",
        run.recipe_text.replace("```", "'''").rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _version() -> str:
    try:
        return metadata.version("levelhead")
    except metadata.PackageNotFoundError:
        return "from its sources"


def _front(run: Run, base: str | None, *, adapter: bool) -> Iterator[str]:
    stages = [stage for stage in ("sft", "grpo") if run.recipe.get(stage)]
    front: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["levelhead", *stages],
    }
    if base and not base.startswith(("/", ".", "~")):
        front["base_model"] = base
    yield "---"
    yield yaml.safe_dump(front, sort_keys=False).rstrip()
    yield "---"
    yield ""


def _use(*, adapter: bool) -> Iterator[str]:
    library, name = ("peft", "AutoPeftModelForCausalLM") if adapter else ("transformers", "AutoModelForCausalLM")
    yield from [
        "```python",
        f"from {library} import {name} as Model",
        "from transformers import AutoTokenizer",
        "",
        'tokenizer, model = AutoTokenizer.from_pretrained("."), Model.from_pretrained(".")',
        'chat = [{"role": "user", "content": "Hello."}]',
        "ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors='pt', return_dict=True)",
        "print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))",
        "```",
        "",
    ]


def _scores(run: Run, precision: str) -> Iterator[str]:
    """A table a task: each stage's score, by stratum, and the best answer that reads nothing."""
    yield from ["## Held-out scores", ""]
    if not run.summary_tasks:
        yield from ["The run was not evaluated.", ""]
    elif precision:
        yield from [precision, ""]
    verdicts = run.summary.get("verdict")
    for name, stages in run.summary_tasks.items():
        there = [stage for stage in STAGES if isinstance(stages.get(stage), Mapping)]
        if not there:
            continue
        yield from [f"### {_plain(name)}", "", f"| prompts | {' | '.join(there)} |", f"|---|{'---|' * len(there)}"]
        results = [stages[stage] for stage in there]
        yield f"| all ({results[-1].get('n', '?')}) | {' | '.join(_score(result) for result in results)} |"
        strata = dict.fromkeys(key for result in results for key in result.get("strata") or {})
        for stratum in strata:
            cells = [_score((result.get("strata") or {}).get(stratum) or {}) for result in results]
            yield f"| {_plain(stratum)} | {' | '.join(cells)} |"
        yield ""
        constant = results[-1].get("constant")
        if isinstance(constant, Mapping):
            yield f"The best constant answer scores {_score(constant)}: {_plain(constant.get('answer', ''))}"
            yield ""
        verdict = verdicts.get(name) if isinstance(verdicts, Mapping) else None
        if isinstance(verdict, Mapping):
            yield from [_plain(verdict.get("text", "")), ""]


def _findings(folder: Path, run: Run) -> Iterator[str]:
    """What the doctor says of the log, and what was told while it ran, by code."""
    yield from ["## Findings", ""]
    try:
        findings = examine(folder).diagnosis.findings
    except InputError:
        findings = ()
    for finding in findings:
        severity = "" if finding.code in VERDICTS else f" ({finding.severity}, {finding.confidence:.0%})"
        yield f"- `{finding.code}`{severity}: {CATALOGUE[finding.code].title.en}"
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for event in run.events:
        if event.get("severity") in ("warning", "critical"):
            by_code.setdefault(str(event.get("code")), []).append(event)
    yield from (_told(code, events) for code, events in by_code.items())
    if not findings and not by_code:
        yield "None."
    yield ""


def _told(code: str, events: Sequence[Mapping[str, Any]]) -> str:
    steps = f"step {events[0].get('step')}" if len(events) == 1 else f"{len(events)} times"
    return f"- `{_plain(code)}` ({events[-1].get('severity')}, {steps}): {_plain(events[-1].get('message', ''))}"


def _score(result: Mapping[str, Any]) -> str:
    score, error = result.get("score"), result.get("se")
    if not isinstance(score, int | float):
        return "-"
    return f"{score:+.3f}" + (f" ± {error:.3f}" if isinstance(error, int | float) else "")


def _plain(value: Any) -> str:
    """Text that means nothing in Markdown, in one line."""
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return _MARKED.sub(r"\\\1", "".join(c for c in text if c.isprintable()))
