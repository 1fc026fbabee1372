"""``levelhead doctor``: diagnose a log or run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language
    from levelhead.doctor.report import Beside, Report
    from levelhead.doctor.survey import Survey

_MAP = Message(
    "--map {pair}: give SIGNAL=KEY, as in --map reward=my_reward",
    "--map {pair}：应为 SIGNAL=KEY，例如 --map reward=my_reward",
)


def doctor(
    path: Annotated[Path, typer.Argument(help="Log file, run folder, or folder of runs, of any trainer; - for stdin.")],
    format_: Annotated[str | None, typer.Option("--format", help="Format name; recognised by content.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a self-contained HTML page.")] = None,
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", help="Exit 1 at this severity: warning, critical.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the messages: en, zh.")] = "en",
    key: Annotated[list[str] | None, typer.Option("--map", help="SIGNAL=KEY of your log; repeatable.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The run's script or configuration: py, sh, yaml, json, toml.")
    ] = None,
    rollouts: Annotated[
        Path | None, typer.Option("--rollouts", help="The run's answers: parquet, JSON lines, or a folder of them.")
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask what would settle an uncertain diagnosis.")] = False,
    answer: Annotated[
        list[str] | None,
        typer.Option("--answer", help="KEY=VALUE: answer to a question, setting or signal; repeatable."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep reading as the log grows; end with Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between looks while following.")] = 2.0,
) -> None:
    """Say what is the matter with a training run, since when, and what to change."""
    from levelhead.diagnosis.findings import language_named
    from levelhead.doctor.report import SEVERITIES, examine
    from levelhead.doctor.survey import survey

    language = language_named(lang)
    keys = _keys(key or [])
    if fail_on is not None and fail_on not in SEVERITIES:
        raise InputError(f"--fail-on {fail_on}: give one of {', '.join(SEVERITIES)}")
    beside = _beside(config, rollouts, answer or [], as_json, ask)
    if follow and (beside is not None or ask):
        raise InputError("--follow: cannot be given with --config, --rollouts, --answer or --ask")
    if not follow and (many := survey(path, format_, keys)) is not None:
        if html is not None:
            raise InputError(f"--html {html}: a page is about one run, and {path} holds {len(many.reports)}; name one")
        if beside is not None or ask:
            raise InputError(f"{path}: holds {len(many.reports)} runs; --config, --rollouts and answers are about one")
        _print_many(many, language, as_json)
        if fail_on is not None and many.fails(fail_on):
            raise typer.Exit(1)
        return
    if follow:
        report = _follow(path, format_, keys, every, language, as_json)
    else:
        report = examine(path, format_, keys, beside=beside)
        _print(report, language, as_json)
        if ask and (answers := _asked(report, language)):
            report = examine(path, format_, keys, beside=_beside(config, rollouts, [*(answer or []), *answers]))
            say("")
            _print(report, language, as_json)
    if html is not None and report is not None:
        _write_page(report, html, language)
    if fail_on is not None and report is not None and report.fails(fail_on):
        raise typer.Exit(1)


def _beside(
    config: Path | None, rollouts: Path | None, answers: list[str], as_json: bool = False, ask: bool = False
) -> Beside | None:
    """What is given beside the log; ``None`` where that is nothing."""
    if ask and as_json:
        raise InputError(
            "--ask: cannot be given with --json, which lists the questions; answer with --answer KEY=VALUE"
        )
    if config is None and rollouts is None and not answers:
        return None
    from levelhead.doctor.informed import read_answers
    from levelhead.doctor.report import Beside
    from levelhead.doctor.rollouts import read_rollouts
    from levelhead.doctor.runconfig import RunSettings, read_settings

    return Beside(
        read_settings(config) if config is not None else RunSettings(),
        read_rollouts(rollouts) if rollouts is not None else None,
        read_answers(answers),
    )


def _asked(report: Report, language: Language) -> list[str]:
    """Put the report's questions, and return the answers; an empty line leaves one out, the end of input the rest."""
    from levelhead.doctor.informed import read_answers

    answers: list[str] = []
    for question in report.questions:
        choices = "/".join(question.choices)
        words = question.text.get(language) + (f" ({choices})" if choices else "")
        while True:
            try:
                reply = typer.prompt(words, default="", show_default=False, err=True).strip()
            except (typer.Abort, EOFError):
                return answers
            if not reply:
                break
            try:
                read_answers([f"{question.key}={reply}"])
            except InputError as error:
                say(str(error), error=True)
                continue
            answers.append(f"{question.key}={reply}")
            break
    return answers


def _keys(pairs: list[str]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for pair in pairs:
        signal, equals, raw = pair.partition("=")
        if not equals or not signal or not raw:
            raise InputError(_MAP(pair=pair))
        keys[signal.strip()] = raw.strip()
    return keys


def _print(report: Report, language: Language, as_json: bool) -> None:
    from levelhead.doctor.render import lines

    if as_json:
        say_json(report.to_json(language))
        return
    colour = sys.stdout.isatty()
    for words, tone in lines(report, language):
        say(words, colour=tone if colour else "")


def _print_many(many: Survey, language: Language, as_json: bool) -> None:
    from levelhead.diagnosis.chinese import said

    if as_json:
        say_json(many.to_json(language))
        return
    colour = sys.stdout.isatty()
    for words, tone in many.lines(language):
        say(words, colour=tone if colour else "")
    more = f"{len(many.reports)} runs; levelhead doctor {many.folder}/RUN says more of one"
    say("\n" + said(more, language), error=True)


def _follow(
    path: Path, given: str | None, keys: dict[str, str], every: float, language: Language, as_json: bool
) -> Report | None:
    from levelhead.doctor.live import follow

    report = None
    try:
        for report in follow(path, given, keys, every):
            _print(report, language, as_json)
    except KeyboardInterrupt:
        pass
    return report


def _write_page(report: Report, target: Path, language: Language) -> None:
    from levelhead.doctor.page import page

    draft = target.with_name(target.name + ".part")
    try:
        if target.exists() and not target.is_file():  # a pipe, or /dev/null: not to be replaced by a file
            target.write_text(page(report, language), encoding="utf-8")
            return
        draft.write_text(page(report, language), encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(f"--html {target}: cannot be written ({error.strerror or error})") from error
