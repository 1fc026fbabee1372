"""The command line: one file a command, registered here.

Commands import what they need when they run, so that none waits for what another needs.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import typer

from levelhead import __version__, startup
from levelhead.cli.check import check
from levelhead.cli.demo import demo
from levelhead.cli.doctor import doctor
from levelhead.cli.evaluate import evaluate
from levelhead.cli.export import export
from levelhead.cli.init import init
from levelhead.cli.judge import judge
from levelhead.cli.recipes import recipes
from levelhead.cli.report import report
from levelhead.cli.serve import serve
from levelhead.cli.simulate import simulate
from levelhead.cli.train import train
from levelhead.cli.watch import watch
from levelhead.errors import EngineError, InputError, PeerError, PolicyError, RewardError
from levelhead.installation import install_command
from levelhead.message import in_language_of
from levelhead.terminal import own_streams, safe, say

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language

app = typer.Typer(
    name="levelhead",
    help="GRPO post-training for language models that keeps its head.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("init")(init)
app.command("recipes")(recipes)
app.command("train")(train)
app.command("check")(check)
app.command("eval")(evaluate)
app.command("report")(report)
app.command("watch")(watch)
app.command("export")(export)
app.command("simulate")(simulate)
app.command("doctor")(doctor)
app.command("demo")(demo)
app.add_typer(serve, name="serve")
app.add_typer(judge, name="judge")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        say(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; errors are one or two lines on stderr, a traceback only with ``--debug``."""
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        with startup.one_command(), own_streams(reserve="--json" in arguments):
            code = app(args=arguments, prog_name="levelhead", standalone_mode=False)
    except Exception as error:
        if debug:
            raise
        # What still waits for a process that is gone is not waited for.
        _leave(_explain(error, _language(arguments)), at_once=isinstance(error, PeerError))
    except KeyboardInterrupt:
        say("levelhead: interrupted", error=True)
        _leave(130)
    _leave(code if isinstance(code, int) else 0)


def _leave(code: int, *, at_once: bool = False) -> NoReturn:
    """End the process, at once if asked, or where threads that a reward function left behind would be waited for."""
    calls = sys.modules.get("levelhead.tasks.main_thread")
    if (calls is not None and calls.keep_alive()) or at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _language(arguments: list[str]) -> Language:
    """The language that a command was asked for, else that of the locale where it is Chinese, else English."""
    for option, value in pairwise([*arguments, ""]):
        if option.startswith("--lang=") or option == "--lang":
            return "zh" if "zh" in (value, option.removeprefix("--lang=")) else "en"
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(name)), "")
    return "zh" if locale.startswith("zh") else "en"


def _explain(error: Exception, language: Language = "en") -> int:
    """Print an error for a person; returns the exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, _USAGE) and hasattr(error, "show"):
        message = getattr(error, "message", "")
        if language == "zh" and (option := getattr(error, "option_name", None)):
            near = [str(one) for one in vars(error).pop("possibilities", None) or []]
            message = f"没有选项 {option}" + (f"；是不是 {near[0]}？" if near else "")
            vars(error)["possibilities"] = None
        vars(error)["message"] = safe(message)
        error.show()
        return 2
    if isinstance(error, typer.Abort) and isinstance(error.__cause__, EOFError):
        error = error.__cause__  # typer takes any end of a file for the user's at the terminal
    if isinstance(error, typer.Abort):
        say("levelhead: interrupted", error=True)
        return 130
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, InputError):
        say(f"levelhead: {_message(error, language)}", error=True)
        return 2
    if isinstance(error, (EngineError, PeerError, PolicyError, RewardError)):
        say("\n".join([f"levelhead: {_message(error, language)}", *getattr(error, "__notes__", ())]), error=True)
        return 3
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").split(".")[0])):
        say(f"levelhead: {error.name} is not installed; {install_command(extra)}", error=True)
        return 2
    first = (str(error).strip() or "no message").splitlines()[0]
    say(f"levelhead: failed: {type(error).__name__}: {first} (--debug shows where)", error=True)
    return 3


def _message(error: Exception, language: Language) -> str:
    """The lines of an error; one that has no Chinese stays as it is."""
    return in_language_of(error.args[0] if len(error.args) == 1 else error, language)


# typer carries its own copy of click from 0.29 on, so that the class has no name that every version can import.
_USAGE = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
_EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "peft", "accelerate", "safetensors", "jinja2"), "train"),
    **dict.fromkeys(("torchjd", "cvxpy", "quadprog"), "merge"),
    **dict.fromkeys(("playwright", "miniwob", "websockets"), "browser"),
    **dict.fromkeys(("lark", "sympy"), "workflow"),
    "httpx2": "judge",
}
