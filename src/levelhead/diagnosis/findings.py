"""Findings: what can be wrong with a run, how to tell, and what to change.

Each finding is one file, ``findings/CODE.yaml``: its texts in English and Chinese, the findings that follow from it,
what the guard does about it while training, the changes that remedy it in the words of each trainer, and the wordings
of its evidence.  ``remedies.yaml`` and ``evidence.yaml`` beside the folder hold what several findings share.  A file is
read and validated once, when its finding is first asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from levelhead.documents import load_own
from levelhead.errors import InputError
from levelhead.message import Phrase
from levelhead.records import Severity

Language = Literal["en", "zh"]
Settings = Mapping[str, Any]
Family = Literal["recipe", "trl", "verl"]

FOLDER = Path(__file__).parent / "findings"
"""Where the findings lie, a file each."""
REMEDIES, EVIDENCE = FOLDER.with_name("remedies.yaml"), FOLDER.with_name("evidence.yaml")
"""What several findings share, by name."""

_ONE = re.compile(r"\b1 (row|reading|evaluation|update|answer)s\b")
_SEEN_BY = ("doctor", "guard", "preflight")


@dataclass(frozen=True, slots=True)
class Text:
    """A text in both languages."""

    en: str
    zh: str

    def get(self, language: Language = "en") -> str:
        """Return the text in a language."""
        return self.zh if language == "zh" else self.en

    @property
    def phrase(self) -> Phrase:
        """The text in English, which has its Chinese with it."""
        return Phrase(self.en, self.zh)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A setting given as a multiple of what the log shows; in a file ``{times: 0.2, of: learning_rate}``.

    Attributes:
        factor: The multiple.
        of: Canonical signal whose largest reading is multiplied.
        whole: Round to a whole number.
    """

    factor: float
    of: str
    whole: bool = False

    def resolve(self, observed: float | None) -> float | int | str:
        """The number, or ``"x0.2"`` where the log does not show what to multiply."""
        if observed is None or observed <= 0:
            return f"x{self.factor:g}"
        value = self.factor * observed
        return round(value) if self.whole else float(f"{value:.3g}")


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to make, with its keys for each trainer.

    Attributes:
        why: Why it helps.
        source: Paper or document that says so.
        recipe: Keys of a Levelhead recipe.
        trl: Fields of TRL's ``GRPOConfig``.
        verl: Keys of verl's configuration.
        unless: Codes of findings beside which it would do harm; it is left out of a report that has one of them.
        causes: What must have ended the run for it to help (``authentication``, ``budget``); anything unless given.
        fills: Its keys are left open by many recipes; one that has any value already needs no other.
    """

    why: Text
    source: str
    recipe: Settings
    trl: Settings
    verl: Settings
    unless: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    fills: bool = False

    def lacking(self, recipe: Mapping[str, Any]) -> Settings:
        """Return the keys that a recipe of Levelhead's does not have yet.

        A key of the tasks (``tasks[].oracle``) is lacking where one of them has it and has it otherwise.  Of a part of
        the recipe that is not there nothing is known, and its keys are returned.

        Args:
            recipe: As plain data, every key written out.
        """
        return {key: value for key, value in self.recipe.items() if self._lacks(recipe, key, value)}

    def _lacks(self, recipe: Mapping[str, Any], key: str, value: Any) -> bool:
        section, _, rest = key.partition(".")
        if section != "tasks[]":
            return bool(_at(recipe, key) != value)
        tasks = [task for task in recipe.get("tasks") or () if isinstance(task, Mapping)]
        held = [at for task in tasks if (at := _at(task, rest)) is not _ABSENT]
        return not tasks or any(at is None if self.fills else at != value for at in held)

    def settings(self, family: Family) -> Settings:
        """The change in the trainer's own words; the recipe's where the trainer has no such setting."""
        return {"trl": self.trl, "verl": self.verl}.get(family, self.recipe) or self.recipe


_ABSENT = object()


def _at(data: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key."""
    node: Any = data
    for part in key.split("."):
        node = node.get(part, _ABSENT) if isinstance(node, Mapping) else _ABSENT
    return node


@dataclass(frozen=True, slots=True)
class Entry:
    """One finding, as its file describes it.

    Attributes:
        code: Stable name, that of its file.
        severity: How bad it is when it is sure.
        title: A few words.
        meaning: What it means for the run.
        mechanism: How it comes about, in two sentences.
        differs: How it is told from its look-alikes.
        confirm: What would confirm it.
        remedies: What to change, the best first.
        explains: Codes of findings that follow from this one.
        seen_by: Who can see it: logs show less than a live run or its set-up.
        interventions: What the guard does about it while training (:mod:`levelhead.guard.remedy` names them).
        evidence: Wordings of arguments that only this finding has, by key.
    """

    code: str
    severity: Severity
    title: Text
    meaning: Text
    mechanism: Text
    differs: Text
    confirm: Text
    remedies: tuple[Remedy, ...]
    explains: tuple[str, ...]
    seen_by: tuple[str, ...]
    interventions: tuple[str, ...]
    evidence: Mapping[str, Text]


class Catalogue(Mapping[str, Entry]):
    """Every finding by code; a file is read when its finding is first asked for.

    Args:
        folder: Where the files lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[str, Entry] = {}

    @functools.cached_property
    def codes(self) -> tuple[str, ...]:
        """Codes of all findings, in alphabetical order."""
        return tuple(sorted(path.stem for path in self._folder.glob("*.yaml")))

    def __iter__(self) -> Iterator[str]:
        return iter(self.codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __contains__(self, code: object) -> bool:
        return code in self.codes

    def __getitem__(self, code: str) -> Entry:
        if code not in self._entries:
            if code not in self.codes:  # a code may come from a log: it is looked up, never made a path
                raise KeyError(code)
            self._entries[code] = read_entry(self._folder / f"{code}.yaml", self.codes)
        return self._entries[code]


def read_entry(path: Path, codes: Collection[str]) -> Entry:
    """Read and validate the file of one finding.

    Args:
        path: ``CODE.yaml``.
        codes: Codes of all findings, which ``explains`` and ``unless`` may name.

    Raises:
        InputError: If it is no valid description of a finding; the message names file and key.
    """
    section = _Section(str(path.name), _load(path))
    entry = Entry(
        code=path.stem,
        severity=section.one_of("severity", get_args(Severity)),
        title=section.text("title"),
        meaning=section.text("meaning"),
        mechanism=section.text("mechanism"),
        differs=section.text("differs"),
        confirm=section.text("confirm"),
        remedies=tuple(_remedy(one, codes) for one in section.sections("remedies")),
        explains=section.names("explains", codes),
        seen_by=section.names("seen_by", _SEEN_BY) or ("doctor", "guard"),
        interventions=section.names("interventions"),
        evidence=section.texts("evidence"),
    )
    section.finish()
    return entry


def wording(code: str, key: str, numbers: Mapping[str, float | str], language: Language = "en") -> str:
    """One argument for or against a finding in words; its bare key where it has no wording or lacks a number."""
    text = CATALOGUE[code].evidence.get(key) or shared_evidence().get(key)
    if text is None:
        return key
    try:
        return _ONE.sub(r"1 \1", text.get(language).format(**numbers))
    except (KeyError, ValueError, IndexError):
        return key


def read_texts(path: Path, key: str) -> Mapping[str, Text]:
    """Return the texts under a key of a file, each by its name.

    Raises:
        InputError: A text lacks one of the languages; the message names file and key.
    """
    return _Section(path.name, _load(path)).texts(key)


def family_of(source: str) -> Family:
    """Whose setting names a reader of a log of format ``source`` knows."""
    if source.startswith(("trl", "ms-swift")):
        return "trl"
    return "verl" if source.startswith("verl") else "recipe"


def language_named(name: str) -> Language:
    """Return the language that ``--lang`` names.

    Raises:
        InputError: There is no such one.
    """
    if name == "zh":
        return "zh"
    if name == "en":
        return "en"
    raise InputError(f"--lang {name}: give one of {', '.join(get_args(Language))}")


@functools.cache
def shared_evidence() -> Mapping[str, Text]:
    """Wordings of arguments that several findings have, by key."""
    return _Section(EVIDENCE.name, {"evidence": _load(EVIDENCE)}).texts("evidence")


@functools.cache
def shared_remedies() -> Mapping[str, Remedy]:
    """Remedies that several findings have, by the name under which their files ``use`` them."""
    whole = _Section(REMEDIES.name, _load(REMEDIES))
    return {name: _remedy(whole.section(name), CATALOGUE.codes) for name in list(whole.values)}


def _remedy(section: _Section, codes: Collection[str]) -> Remedy:
    if "use" in section.values:
        shared = shared_remedies()
        name = section.one_of("use", tuple(shared))
        section.finish()
        return shared[name]
    remedy = Remedy(
        why=section.text("why"),
        source=section.phrase("source"),
        recipe=section.settings("recipe"),
        trl=section.settings("trl"),
        verl=section.settings("verl"),
        unless=section.names("unless", codes),
        causes=section.names("causes"),
        fills=bool(section.values.pop("fills", False)),
    )
    section.finish()
    return remedy


def _load(path: Path) -> dict[str, Any]:
    try:
        content = load_own(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path.name}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.name}: not a mapping of keys to values")
    return content


class _Section:
    """The keys of a mapping in a file, taken out one by one; what is left at the end is a mistake."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where, self.values = where, dict(values)

    def _fail(self, key: str, what: str) -> InputError:
        return InputError(f"{self.where}: {key}: {what}")

    def string(self, key: str) -> str:
        value = self.values.pop(key, None)
        if not isinstance(value, str) or not value.strip():
            raise self._fail(key, "a text is missing")
        return value

    def one_of(self, key: str, options: tuple[str, ...]) -> Any:
        value = self.values.pop(key, None)
        if value not in options:
            raise self._fail(key, f"{value!r} is none of {', '.join(options)}")
        return value

    def section(self, key: str) -> _Section:
        value = self.values.pop(key, None)
        if not isinstance(value, dict):
            raise self._fail(key, "a mapping is missing")
        return _Section(f"{self.where}: {key}", value)

    def sections(self, key: str) -> list[_Section]:
        values = self.values.pop(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self._fail(key, "not a list of mappings")
        return [_Section(f"{self.where}: {key}[{i}]", value) for i, value in enumerate(values)]

    def text(self, key: str) -> Text:
        both = self.section(key)
        text = Text(both.string("en"), both.string("zh"))
        both.finish()
        return text

    def texts(self, key: str) -> dict[str, Text]:
        if key not in self.values:
            return {}
        whole = self.section(key)
        return {name: whole.text(name) for name in list(whole.values)}

    def names(self, key: str, options: Collection[str] | None = None) -> tuple[str, ...]:
        values = self.values.pop(key, [])
        if not isinstance(values, list):
            raise self._fail(key, "not a list")
        for value in values:
            if not isinstance(value, str) or (options is not None and value not in options):
                raise self._fail(key, f"unknown: {value!r}")
        return tuple(values)

    def settings(self, key: str) -> Settings:
        if key not in self.values:
            return {}
        return {name: self._setting(f"{key}.{name}", value) for name, value in self.section(key).values.items()}

    def phrase(self, key: str) -> str:
        """A text that is the same in both languages, or one in each."""
        return self.string(key) if isinstance(self.values.get(key), str) else self.text(key).phrase

    def _setting(self, key: str, value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"en", "zh"}:
            return Phrase(value["en"], value["zh"])
        if not isinstance(value, dict) or "times" not in value:
            return value
        if set(value) - {"times", "of", "whole"} or not isinstance(value.get("of"), str):
            raise self._fail(key, "a multiple has the keys times, of and, where it is to be rounded, whole")
        return Scaled(value["times"], value["of"], bool(value.get("whole", False)))

    def finish(self) -> None:
        if self.values:
            raise self._fail(str(next(iter(self.values))), "unknown key")


CATALOGUE = Catalogue(FOLDER)
"""Every finding by code."""
