"""What a check is, with its texts in English and Chinese, and what it found: outcomes, a report, an error.

To add a check, write its class in ``preflight/checks/``, beside those of its subject or in a file of its own, and add
it to ``CHECKS`` in ``checks/__init__.py``::

    class EmptyColumn(Check):
        name = "data/empty-column/TASK"          # TASK: one outcome per task; STAGE: one per stage
        needs = "data"                           # data, rewards, rollouts or passes: decides when it runs
        proves = Message("Every row has ...", "每一行都有……")
        how = Message("Reads the first 1,000 rows.", "读取前 1,000 行。")
        cannot = Message("It does not judge what the column holds.", "它不判断列的内容。")

        full = Message("{rows} rows have a value in {column}", "{rows} 行的 {column} 都有值")
        empty = Message(
            "{count} of {rows} rows have nothing in {column}",
            "{rows} 行中有 {count} 行的 {column} 为空",
            fix=Fix("fill {column}, or drop these rows", "填好 {column}，或去掉这些行"),
        )

        def run(self, context: Context) -> Iterator[Outcome]:
            for name, task in context.setup.tasks.items():
                ...
                if count:
                    yield self.fail(self.empty, name, rows=rows, count=count, column=column)
                else:
                    yield self.ok(self.full, name, rows=rows, column=column)

Rules.  A message is a format string with named fields, and the fields are plain JSON values; a text is never put
together from finished sentences.  The module imports no torch at its top (the report and ``--explain`` read these
texts without it).  Nothing but ``needs = "passes"`` calls the model, and it uses the passes that the context has made
(``context.passes``): a check never samples or runs the model itself, so that the preflight costs as many tokens as
six forward and two backward passes over its few rollouts, however many checks there are.  A check that may be wrong
about a sound run warns or stays silent.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from levelhead import message
from levelhead.errors import InputError, RewardError

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language
    from levelhead.preflight import context

Context: TypeAlias = "context.Context"
"""What a check looks at; by name alone, since the texts of a check are read without torch."""


class Fix(NamedTuple):
    """What to change, as format strings with the fields of its message."""

    en: str
    zh: str


class Message(message.Message):
    """A text with named fields, and what to do about it.

    As a class attribute of a check it knows its key, the attribute's name with dashes.

    Args:
        en: English format string.
        zh: Chinese format string, with the same fields.
        fix: What to change; ``None`` where nothing is wrong.
        words: By field, what its values are called in English and Chinese: the field holds keys, one or a list.
    """

    def __init__(
        self, en: str, zh: str, fix: Fix | None = None, words: Mapping[str, Mapping[str, tuple[str, str]]] | None = None
    ) -> None:
        super().__init__(en, zh)
        self.fix, self._words = fix, words or {}
        self.key = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = self.key or name.strip("_").replace("_", "-")

    def text(self, fields: Mapping[str, Any], language: Language = "en") -> str:
        """Return the message with its fields filled in."""
        return super().text(
            {name: self._named(name, value, language == "zh") for name, value in fields.items()}, language
        )

    def _named(self, field: str, value: Any, zh: bool) -> Any:
        """Return what a value of a field is called."""
        if field not in self._words:
            return value
        words = [self._words[field][key][zh] for key in ([value] if isinstance(value, str) else value)]
        return ("、" if zh else ", ").join(words) or ("无" if zh else "none")

    def way_out(self, fields: Mapping[str, Any], language: Language = "en") -> str:
        """Return what to change; empty where nothing is wrong."""
        return "" if self.fix is None else self.fix[language == "zh"].format(**fields)


Status = Literal["pass", "warn", "fail"]
_RANK: Mapping[Status, int] = {"pass": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One result of a check.

    Attributes:
        name: ``family/what``, with the task or stage behind it, as ``rewards/order/math``.
        status: Whether it passed.
        said: The message.
        fields: Values of the message's fields; plain data.
        evidence: The tokens and numbers that it was found in; plain data.
        check: Name of the check, with ``TASK`` or ``STAGE`` in it.
    """

    name: str
    status: Status
    said: Message
    fields: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""

    @property
    def id(self) -> str:
        """Which message of which check, as ``tokens/vocabulary:too-small``."""
        return f"{self.check or self.name}:{self.said.key}"

    @property
    def message(self) -> str:
        """What was found, in one English line."""
        return self.said.text(self.fields)

    @property
    def fix(self) -> str:
        """What to change, in English; empty where nothing is wrong."""
        return self.said.way_out(self.fields)

    def to_json(self) -> dict[str, Any]:
        """Dict for ``check.json``: name, status, id and fields, English message and fix, evidence."""
        return {
            "name": self.name,
            "status": self.status,
            "id": self.id,
            "fields": dict(self.fields),
            "message": self.message,
            "fix": self.fix,
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of a preflight.

    Attributes:
        checks: In the order in which they were made.
        seconds: What they took.
    """

    checks: Sequence[Outcome]
    seconds: float

    @property
    def status(self) -> Status:
        """The worst status of all outcomes."""
        return max((check.status for check in self.checks), key=_RANK.__getitem__, default="pass")

    @property
    def failures(self) -> list[Outcome]:
        """The outcomes whose status is ``fail``."""
        return [check for check in self.checks if check.status == "fail"]

    def to_json(self) -> list[dict[str, Any]]:
        """The list that ``check.json`` holds."""
        return [check.to_json() for check in self.checks]


class PreflightError(InputError):
    """A check failed before the first step; the run was not started.

    Args:
        report: With at least one failure.
        where: File that holds the whole of it.
        language: Of the message.
    """

    def __init__(self, report: Report, where: str, language: Language = "en") -> None:
        first, more = report.failures[0], len(report.failures) - 1
        what, fix = first.said.text(first.fields, language), first.said.way_out(first.fields, language)
        if language == "zh":
            rest = f"（另有 {more} 项，见 {where}）" if more else f"（证据见 {where}）"
            lines = f"预检：{first.name} 未通过：{what}{rest}", f"{fix}；或加上 --no-check，不作预检直接开始。"
        else:
            rest = f" ({more} more in {where})" if more else f" (evidence in {where})"
            lines = f"preflight: {first.name} failed: {what}{rest}", f"{fix}; or start all the same with --no-check."
        super().__init__("\n".join(lines))
        self.report = report


Need = Literal["data", "rewards", "rollouts", "passes"]
"""What a check needs, cheapest first: recipe, data, tokenizer and the model's shape; calls of rewards and judges; the
shared rollouts; the shared passes over them."""
NEEDS: tuple[Need, ...] = ("data", "rewards", "rollouts", "passes")

FALSE_ALARM = 1e-4
"""Probability that any check of a sound preflight fails or warns by chance, at most."""
TESTS = 10
"""Checks that share it: those that judge something random."""
LEVEL = FALSE_ALARM / TESTS
"""Probability that one of them does; where a check looks at several tasks, they share it in turn."""


class Check(abc.ABC):
    """One check of a run before its first step.

    Attributes:
        name: ``family/what``, as ``tokens/vocabulary``; ``/TASK`` or ``/STAGE`` at the end where there is an
            outcome per task or stage.
        needs: When it runs, see :data:`Need`.
        proves: What is true of the run where the check passes.
        how: What it does to find out.
        cannot: What it does not see, so that a pass is not taken for more than it is.
        decisive: Whether no other check can be made where it fails.
    """

    name: ClassVar[str]
    needs: ClassVar[Need]
    proves: ClassVar[Message]
    how: ClassVar[Message]
    cannot: ClassVar[Message]
    decisive: ClassVar[bool] = False

    @property
    def family(self) -> str:
        """First part of the name."""
        return self.name.split("/")[0]

    @abc.abstractmethod
    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield the outcomes: one, or one per task or stage; none where the recipe has nothing to check.

        Args:
            context: The run's own policy, tokenizer, tasks and recipe, and what all checks share.

        Raises:
            InputError, RewardError: Reported as a failure of this check, like any other exception.
        """

    @classmethod
    def messages(cls) -> dict[str, Message]:
        """Return the messages of the check by their key, explanations left out."""
        about = ("proves", "how", "cannot")
        names = [name for kind in reversed(cls.__mro__) for name in vars(kind) if name not in about]
        return {m.key: m for name in names if isinstance(m := getattr(cls, name), Message)}

    def ok(self, message: Message, of: str = "", /, **fields: Any) -> Outcome:
        """Return a pass; see :meth:`outcome`."""
        return self.outcome("pass", message, of, **fields)

    def warn(self, message: Message, of: str = "", /, **fields: Any) -> Outcome:
        """Return a warning; see :meth:`outcome`."""
        return self.outcome("warn", message, of, **fields)

    def fail(self, message: Message, of: str = "", /, **fields: Any) -> Outcome:
        """Return a failure, which keeps the run from starting; see :meth:`outcome`."""
        return self.outcome("fail", message, of, **fields)

    def outcome(
        self, status: Status, message: Message, of: str = "", /, *, evidence: Mapping[str, Any] = {}, **fields: Any
    ) -> Outcome:
        """Make an outcome of this check.

        Args:
            status: ``pass``, ``warn`` or ``fail``.
            message: One of the class's own.
            of: Name of the task or stage, put in the place of ``TASK`` or ``STAGE`` in the name.
            evidence: Tokens and numbers for ``--evidence`` and ``check.json``; plain data.
            fields: Of the message.
        """
        stem = self.name.removesuffix("/TASK").removesuffix("/STAGE")
        name = f"{stem}/{of}" if of else stem
        return Outcome(name, status, message, fields, evidence, self.name)


class Broken(Check):
    """Reports whatever kept another check from being made, which would break training off as well."""

    name = "FAMILY/error"
    needs = "data"
    proves = Message("The check could be made at all.", "检查能够进行。")
    how = Message("Catches what broke it off and reports it in one line.", "捕获使检查中断的错误，用一行说明。")
    cannot = Message("What that check would have found stays unknown.", "那项检查本会发现什么，仍不得而知。")

    refused = Message(
        "{check} could not be made: {error}",
        "无法进行 {check}：{error}",
        fix=Fix("correct what the error names; training would meet it too", "修正错误所指之处；训练也会遇到它"),
    )
    reward = Message(
        "{check} could not be made: {error}",
        "无法进行 {check}：{error}",
        fix=Fix("{fix}", "{fix}"),
    )
    broke_off = Message(
        "{check} broke off, as training would: {kind}: {error}",
        "{check} 中断了，训练也会这样中断：{kind}：{error}",
        fix=Fix(
            "look at the error's own words; --no-check starts without the preflight, but training takes the same steps",
            "请看错误本身；--no-check 可跳过预检，但训练会走同样的步骤",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:  # noqa: ARG002
        """Yield nothing: outcomes come from :meth:`of`."""
        yield from ()

    @classmethod
    def of(cls, check: Check, error: Exception) -> Outcome:
        """Return the failure of a check that an exception broke off.

        Args:
            check: The check.
            error: What it raised.
        """
        first = (str(error).strip() or "no message").splitlines()[0][:300]
        name = f"{check.family}/error"
        fields = {"check": check.name, "error": first}
        if isinstance(error, RewardError) and error.fix:
            return Outcome(name, "fail", cls.reward, fields | {"fix": error.fix}, {}, cls.name)
        if isinstance(error, InputError | RewardError):
            return Outcome(name, "fail", cls.refused, fields, {}, cls.name)
        fields["kind"] = type(error).__name__
        return Outcome(name, "fail", cls.broke_off, fields, {"error": repr(error)[:400]}, cls.name)
