"""Text leaves to the terminal at one place, and nothing in it is obeyed."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from rich.table import Table

import levelhead
from levelhead.terminal import counted, paint, safe, say, say_json
from levelhead.terminal.console import SafeConsole

HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\x7fe\u202ef\u2066g\x08h\x00i\x1b]8;;http://x\x1b\\j\ud800k\rl"
SHOWN = "abcdefghijkl"
PRINTERS = ("print", "typer.echo", "typer.secho", "Console", "sys.stdout.write", "sys.stderr.write")


def test_no_control_character_is_left() -> None:
    assert safe(HOSTILE) == SHOWN
    assert safe("\x1b\x1b[[31m\x1b") == "31m"
    assert safe("a\tb\nc \u6b65 \xe9") == "a\tb\nc \u6b65 \xe9"


def test_only_colours_of_ours_are_painted() -> None:
    assert paint("\x1b[5mx", "31;1") == "\x1b[31;1mx\x1b[0m"
    assert paint("x", "2J\x1b") == "x"


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "0 warnings"), (1, "1 warning"), (2, "2 warnings"), (1.0, "1 warning"), (0.4, "0 warnings")]
)
def test_one_thing_is_no_plural(n: float, shown: str) -> None:
    assert counted(n, "warning") == shown


def test_what_is_said_is_safe(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    say(HOSTILE, error=True)
    assert capsys.readouterr() == (f"{SHOWN}\n", f"{SHOWN}\n")


def test_json_keeps_what_it_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({HOSTILE: [float("nan"), -float("inf"), HOSTILE]})
    said = capsys.readouterr().out
    assert safe(said) == said
    assert json.loads(said) == {HOSTILE: ["nan", "-inf", HOSTILE]}


def test_a_table_is_safe_and_keeps_its_own_colours() -> None:
    out = io.StringIO()
    table = Table(title=HOSTILE)
    table.add_row(f"[bold]{SHOWN}[/bold]", HOSTILE.replace("[", ""))
    SafeConsole(file=out, force_terminal=True, width=120).print(table)
    said = out.getvalue()
    assert "\x1b[1m" in said
    assert not {"\x9b", "\x7f", "\u202e", "\x00", "\x07", "\x08"} & set(said)


def test_nothing_prints_past_the_one_place() -> None:
    root = Path(levelhead.__file__).parent
    allowed = {root / room / "__main__.py" for room in ("recipe", "metrics")} | {root / "cli" / "page.py"}
    allowed |= {root / "tasks" / name for name in ("second_process.py", "datasets/worker.py")}
    past: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if "terminal" in path.parts or "sandbox" in path.parts or path in allowed:
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        past += [f"{path.relative_to(root)}:{call.lineno}" for call in calls if ast.unparse(call.func) in PRINTERS]
    assert not past, "print with levelhead.terminal"
