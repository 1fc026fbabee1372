"""Messages have both languages with the same fields, and events are made of messages."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

import levelhead
from levelhead.diagnosis.detectors.base import Evidence
from levelhead.diagnosis.findings import CATALOGUE, wording
from levelhead.diagnosis.notice import message_of, notice
from levelhead.diagnosis.ranking import Finding
from levelhead.guard.messages import described
from levelhead.message import Message, Phrase, joined
from levelhead.records import Event

SOURCES = Path(levelhead.__file__).parent
ROOMS = ("guard", "training", "rollout", "objective")
ASIDE = ("error", "line", "text")
"""What stands for a message in a call of ``Event``: another program's words, and what has been made of messages."""


def modules() -> Iterator[Path]:
    yield from (path for room in ROOMS for path in sorted((SOURCES / room).rglob("*.py")))


def messages() -> list[Any]:
    """Every message of a module or of a class in it."""
    made = {}
    for path in modules():
        if "Message(" not in path.read_text(encoding="utf-8"):
            continue
        name = ".".join(("levelhead", *path.relative_to(SOURCES).with_suffix("").parts))
        module = importlib.import_module(name)
        scopes = [("", vars(module)), *((key, vars(v)) for key, v in vars(module).items() if isinstance(v, type))]
        for scope, names in scopes:
            made |= {f"{name}.{scope}.{key}": v for key, v in names.items() if isinstance(v, Message)}
    return [pytest.param(message, id=name) for name, message in made.items()]


def fields(text: str) -> set[tuple[str, str]]:
    return {(name, spec or "") for _, name, spec, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("message", messages())
def test_both_languages_have_the_same_fields_in_the_same_form(message: Message) -> None:
    assert fields(message.en) == fields(message.zh)
    assert re.search("[\u3400-\u9fff]", message.zh)
    assert not re.search("[\u3400-\u9fff]", message.en)


def test_no_event_of_the_core_is_a_sentence_in_english_alone() -> None:
    bare = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Event" and len(node.args) > 3:
                text = node.args[3]
                words = [name.id for name in ast.walk(text) if isinstance(name, ast.Name)]
                if isinstance(text, ast.JoinedStr | ast.Constant) and not set(words) & set(ASIDE):
                    bare.append(f"{path.name}:{node.lineno}")
    assert bare == []


def test_a_phrase_is_its_english_text_and_takes_its_chinese_along() -> None:
    fell = Message("{what} fell to {now:.2f}", "{what}降到 {now:.2f}")
    phrase = fell(what=Message("reward", "奖励")(), now=0.25) + Message("; stopped", "；已停止")()
    assert phrase == "reward fell to 0.25; stopped"
    assert phrase.zh == "奖励降到 0.25；已停止"
    again = pickle.loads(pickle.dumps(phrase))
    assert (again, again.zh) == (phrase, phrase.zh)
    assert joined([phrase, Phrase("b")]).zh == "奖励降到 0.25；已停止、b"


def test_a_line_of_events_holds_both_languages_and_the_terminal_shows_the_reader_s() -> None:
    event = Event(3, "reward-collapse", "critical", Phrase("reward fell", "奖励下降"), "warn").to_json()
    assert (event["message"], event["message_zh"]) == ("reward fell", "奖励下降")
    assert "reward fell" in notice(event)
    assert "奖励下降" in notice(event, language="zh")
    assert "message_zh" not in Event(3, "engine", "critical", "another program's words").to_json()
    assert message_of({"message": "another program's words"}, "zh") == "another program's words"


def test_the_guard_names_a_finding_with_its_strongest_argument_in_both_languages() -> None:
    where: dict[str, float | str] = {
        "task": "bbq",
        "stratum": "disambig",
        "early": 0.6,
        "late": 0.95,
        "before": 0.12,
        "after": 0.02,
    }
    finding = Finding("stratum-falls", "warning", 0.8, 2.0, (), (Evidence(3.0, "common-answer-gains", where),))
    words = described(finding)
    entry = CATALOGUE["stratum-falls"]
    assert words.zh.startswith(entry.title.zh)
    assert wording("stratum-falls", "common-answer-gains", where, "zh") in words.zh
    assert words.zh.endswith(entry.meaning.zh)
    assert words.startswith(entry.title.en)
