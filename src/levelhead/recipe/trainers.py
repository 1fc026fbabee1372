"""What the settings of other trainers are called here: TRL's in full, words of verl and OpenRLHF."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

Kind = Literal["same", "like", "fixed", "data", "only", "refused"]
"""The same value under a key, another form, no effect, a thing of Python, some values alone, or refused."""
WORDS: Mapping[Kind, str] = {
    "same": "the same",
    "like": "in another form",
    "fixed": "no key needed",
    "data": "a thing of Python",
    "only": "no other value",
    "refused": "refused",
}
_NAMES = {"verl": "verl", "openrlhf": "OpenRLHF", "trl": "TRL"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of another trainer.

    Attributes:
        name: What it is called there.
        kind: How it stands to ours.
        key: Ours, dotted; or a command, where that does it; the values that are taken, of kind ``only``; empty where
            there is none.
        note: What to know; of one that is refused, the way out.
        default: Its default there.
    """

    name: str
    kind: Kind
    key: str
    note: str
    default: Any = None

    def takes(self, value: Any) -> bool:
        """Whether a run with this value is one that can be made here."""
        if self.kind not in ("only", "refused") or value is None or value == self.default or value in ("", [], {}):
            return True
        allowed = {str(yaml.safe_load(word)) for word in self.key.split(",")} if self.kind == "only" else set()
        return str(getattr(value, "value", value)) in allowed


@cache
def trl() -> Mapping[str, Mapping[str, Setting]]:
    """Return every argument of TRL's ``GRPOConfig`` and ``GRPOTrainer``, as ``config`` and ``trainer``."""
    tables = _read("trl.yaml")
    defaults = tables["defaults"]
    return {
        part: {name: _setting(name, text, defaults.get(name)) for name, text in tables[part].items()}
        for part in ("config", "trainer")
    }


@cache
def words() -> Mapping[str, tuple[str, str]]:
    """Return our key and the trainer's name, by another trainer's word for it."""
    names_by_word: dict[str, tuple[str, str]] = {}
    for trainer, names in _read("trainers.yaml").items():
        names_by_word |= {name: (key, _NAMES[trainer]) for name, key in names.items()}
    for setting in trl()["config"].values():
        if setting.key and setting.kind in ("same", "like") and not setting.key.startswith("levelhead "):
            names_by_word[setting.name] = (setting.key, "TRL")
    return names_by_word


def table(part: str) -> str:
    """Return a table of TRL's arguments in Markdown: ``config`` or ``trainer``."""
    lines = ["| TRL | here | |", "|---|---|---|"]
    for setting in trl()[part].values():
        key = f"`{setting.key}`" if setting.key else "-"
        note = "; ".join(text for text in (WORDS[setting.kind], setting.note) if text)
        lines.append(f"| `{setting.name}` | {key} | {note} |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """Return a page with the tables between its ``<!-- NAME -->`` and ``<!-- end -->`` written anew."""
    for part in trl():
        head, mark, rest = page.partition(f"<!-- {part} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        page = f"{head}{mark}{table(part)}\n{end}{tail}"
    return page


def _setting(name: str, text: str, default: Any) -> Setting:
    head, _, note = text.partition(";")
    kind, _, key = head.strip().partition(" ")
    (word,) = [word for word in get_args(Kind) if word == kind]
    return Setting(name, word, key.strip(), note.strip(), default)


def _read(name: str) -> dict[str, Any]:
    text = (resources.files("levelhead") / "recipe" / name).read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(filled(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
