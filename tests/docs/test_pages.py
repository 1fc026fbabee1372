"""What the documentation shows works: links lead somewhere, commands parse, recipes validate, names exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from levelhead.cli.main import app
from levelhead.metrics.catalogue import find
from levelhead.preflight.explain import CATALOGUE
from levelhead.recipe.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
UsageError = typer.BadParameter.__mro__[1]
"""The error that Typer raises for a command line that it does not take."""
SHELLS = ("", "bash", "console", "sh")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the fenced blocks of all pages that are in one of the languages."""
    return [block for page in PAGES for block in _blocks(page) if block.language in languages]


def _blocks(page: Path) -> Iterator[Block]:
    fence, start, language, inside = "", 0, "", []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"\s*(`{3,})\s*(\w*)", line)
        if mark and not fence:
            fence, start, language, inside = mark[1], number, mark[2], []
        elif mark and line.strip() == fence:
            yield Block(page, start, language, "\n".join(inside) + "\n")
            fence = ""
        elif fence:
            inside.append(line)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", "", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, spelt as Markdown renderers do."""
    headings = re.findall(r"(?m)^#+\s+(.+?)\s*$", prose(page))
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading_that_are_there(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", [p for p in PAGES if "docs" in p.parts], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_page_of_the_site_links_out_of_the_site(page: Path) -> None:
    inside = (ROOT / "docs").resolve()
    targets = [t.partition("#")[0] for t in LINK.findall(prose(page)) if not re.match(r"[a-z]+:|#", t)]
    assert not [t for t in targets if not (page.parent / t).resolve().is_relative_to(inside)]


def commands() -> Iterator[tuple[Block, list[str]]]:
    """Yield the arguments of every ``levelhead ...`` line of a shell block."""
    for block in blocks(*SHELLS):
        for line in block.text.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*(\$\s+)?([A-Z_]+=\S+\s+)*", "", line)
            if line.startswith("levelhead "):
                words = shlex.split(line, comments=True)[1:]
                stop = next((i for i, word in enumerate(words) if word in {"|", ">", "&&", "2>", ";"}), len(words))
                yield block, words[:stop]


def inline_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments of every `levelhead ...` in running text, placeholders left out."""
    for page in PAGES:
        for text in re.findall(r"`levelhead ([^`]+)`", prose(page)):
            yield page.name, [word for word in shlex.split(text.replace("\n", " ")) if word not in {"|", "..."}]


def parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command line as the program would, without running it or looking at any file.

    Raises:
        UsageError: There is no such command or option.
    """
    context = command.context_class(command, parent=parent, info_name=command.name)
    rest = command.make_parser(context).parse_args(words)[1]
    if hasattr(command, "resolve_command") and rest:
        _, child, words = command.resolve_command(context, rest)
        parse(child, words, context)


def test_every_command_shown_is_one_that_the_program_takes() -> None:
    program = typer.main.get_command(app)
    wrong, count = [], 0
    for where, words in (*commands(), *inline_commands()):
        shown = [word.strip("[]") for word in words if word not in {"...", "[...]"}]
        count += 1
        try:
            parse(program, shown)
        except UsageError as error:
            wrong.append(f"{where}: levelhead {' '.join(words)}: {error.message}")
    assert not wrong
    assert count > 70


def test_a_command_that_is_not_there_would_be_noticed() -> None:
    program = typer.main.get_command(app)
    for line in ("trane recipe.yaml", "train recipe.yaml --sett a=b", "serve browsers"):
        with pytest.raises(UsageError):
            parse(program, line.split())


def complete(fragment: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe that holds a fragment of one, as pages show them."""
    recipe = yaml.safe_load((ROOT / "src/levelhead/recipes/dual-tiny.yaml").read_text(encoding="utf-8"))
    return recipe | fragment


def test_every_recipe_shown_is_one_that_validates() -> None:
    wrong, count = [], 0
    for block in blocks("yaml"):
        fragment = yaml.safe_load(block.text)
        if not isinstance(fragment, dict) or not set(fragment) <= set(Recipe.model_fields):
            continue
        count += 1
        try:
            Recipe.model_validate(complete(fragment))
        except ValueError as error:
            wrong.append(f"{block}: {error}")
    assert not wrong
    assert count > 10


def test_every_check_of_the_preflight_that_a_page_names_is_one() -> None:
    checks = {name.removesuffix("/TASK").removesuffix("/STAGE") for name in CATALOGUE}
    families = {name.partition("/")[0] for name in checks} | {"objective"}
    shown = re.compile(r"`([a-z]+/[a-z-]+)(?:/[A-Z]+)?`")
    named = {(page.name, name) for page in (ROOT / "docs").glob("*.md") for name in shown.findall(prose(page))}
    wrong = {(page, name) for page, name in named if name.partition("/")[0] in families and find(name) is None}
    assert not {(page, name) for page, name in wrong if name not in checks}


def test_every_import_shown_is_there() -> None:
    missing, count = [], 0
    for block in blocks("python"):
        tree = ast.parse(block.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "levelhead":
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    count += 1
                    if not hasattr(module, alias.name):
                        try:
                            importlib.import_module(f"{node.module}.{alias.name}")
                        except ImportError:
                            missing.append(f"{block}: {node.module}.{alias.name}")
    assert not missing
    assert count > 15
