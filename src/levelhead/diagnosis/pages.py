"""The pages of ``docs/findings``, from the findings' files: ``python -m levelhead.diagnosis.pages docs/findings``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelhead.diagnosis.findings import CATALOGUE, Entry, Remedy, Scaled
from levelhead.terminal import say

INDEX = "README.md"


def render() -> dict[str, str]:
    """File name to content: a page a finding, and an index."""
    pages = {f"{code}.md": _page(entry) for code, entry in CATALOGUE.items()}
    pages[INDEX] = _index()
    return pages


def write(folder: Path) -> list[Path]:
    """Write the pages that differ from what is there; returns those written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in render().items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            written.append(path)
    return written


def _index() -> str:
    about = (
        "What can be the matter with a run. The guard, the doctor and preflight use these names; the pages are made "
        "from the catalogue (`python -m levelhead.diagnosis.pages docs/findings`)."
    )
    head = ["# Findings", "", about, "", "| code | | | severity when sure | seen by |", "|---|---|---|---|---|"]
    rows = [
        f"| [`{code}`]({code}.md) | {e.title.en} | {e.title.zh} | {e.severity} | {', '.join(e.seen_by)} |"
        for code, e in CATALOGUE.items()
    ]
    return "\n".join([*head, *rows, ""])


def _page(entry: Entry) -> str:
    lines = [f"# {entry.title.en} (`{entry.code}`)", "", entry.meaning.en, ""]
    lines += [f"Severity when sure: {entry.severity}. Seen by: {', '.join(entry.seen_by)}.", ""]
    for heading, text in (
        ("How it comes about", entry.mechanism),
        ("Not to be confused", entry.differs),
        ("What would confirm it", entry.confirm),
    ):
        lines += [f"## {heading}", "", text.en, ""]
    if entry.remedies:
        lines += ["## What to change", ""]
        for remedy in entry.remedies:
            lines += _remedy(remedy)
    if entry.explains:
        lines += ["## What follows from it", "", ", ".join(f"[`{code}`]({code}.md)" for code in entry.explains), ""]
    lines += [f"## {entry.title.zh}", "", entry.meaning.zh, "", entry.mechanism.zh, "", entry.differs.zh, ""]
    lines += [f"确认\uff1a{entry.confirm.zh}", ""]
    lines += [f"- {remedy.why.zh}" for remedy in entry.remedies]
    return "\n".join(lines).rstrip() + "\n"


def _remedy(remedy: Remedy) -> list[str]:
    lines = [f"{remedy.why.en} Source: {remedy.source}.", "", "| trainer | settings |", "|---|---|"]
    for name, settings in (("Levelhead", remedy.recipe), ("TRL", remedy.trl), ("verl", remedy.verl)):
        if settings:
            lines.append(f"| {name} | {_settings(settings)} |")
    return [*lines, ""]


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}: {_value(value)}`" for key, value in settings.items())


def _value(value: Any) -> str:
    if isinstance(value, Scaled):
        return f"{value.factor:g} x what it was" if value.of == "learning_rate" else f"{value.factor:g} x {value.of}"
    return value if isinstance(value, str) else json.dumps(value)


def main() -> None:
    """Write the pages into the folder given on the command line."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/findings")
    for path in write(folder):
        say(path)


if __name__ == "__main__":
    main()
