"""What a check is: one class in one file, with its name, what it needs, and its texts in English and Chinese.

To add a check, write one file in ``preflight/checks/`` and add its class to ``CHECKS`` in ``checks/__init__.py``::

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

        def run(self, context: PreflightContext) -> Iterator[Outcome]:
            for name, task in context.setup.tasks.items():
                ...
                if count:
                    yield self.fail(self.empty, name, rows=rows, count=count, column=column)
                else:
                    yield self.ok(self.full, name, rows=rows, column=column)

Rules.  A message is a format string with named fields, and the fields are plain JSON values; a text is never put
together from finished sentences.  The module imports no torch at its top (the report and ``--explain`` read these
texts without it).  Nothing but ``needs = "passes"`` calls the model, and it uses the passes that the context has made
(``context.passes``): a check never samples or runs the model itself, so that the preflight costs six forward and two
backward passes however many checks there are.  A check that may be wrong about a sound run warns or stays silent.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from levelhead.preflight.message import Message
from levelhead.preflight.result import Outcome, Status

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext

Need = Literal["data", "rewards", "rollouts", "passes"]
"""What a check needs, cheapest first: recipe, data, tokenizer and the model's shape; calls of rewards and judges; the
shared rollouts; the shared passes over them."""
NEEDS: tuple[Need, ...] = ("data", "rewards", "rollouts", "passes")


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
    def run(self, context: PreflightContext) -> Iterator[Outcome]:
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

    def ok(
        self, message: Message, of: str = "", *, evidence: Mapping[str, Any] | None = None, **fields: Any
    ) -> Outcome:
        """Return a pass; see :meth:`outcome`."""
        return self.outcome("pass", message, of, evidence, fields)

    def warn(
        self, message: Message, of: str = "", *, evidence: Mapping[str, Any] | None = None, **fields: Any
    ) -> Outcome:
        """Return a warning; see :meth:`outcome`."""
        return self.outcome("warn", message, of, evidence, fields)

    def fail(
        self, message: Message, of: str = "", *, evidence: Mapping[str, Any] | None = None, **fields: Any
    ) -> Outcome:
        """Return a failure, which keeps the run from starting; see :meth:`outcome`."""
        return self.outcome("fail", message, of, evidence, fields)

    def outcome(
        self, status: Status, message: Message, of: str, evidence: Mapping[str, Any] | None, fields: Mapping[str, Any]
    ) -> Outcome:
        """Return an outcome.

        Args:
            status: ``pass``, ``warn`` or ``fail``.
            message: One of the class's own.
            of: Name of the task or stage, put in the place of ``TASK`` or ``STAGE`` in the name.
            evidence: Tokens and numbers for ``--evidence`` and ``check.json``; plain data.
            fields: Of the message.
        """
        stem = self.name.removesuffix("/TASK").removesuffix("/STAGE")
        name = f"{stem}/{of}" if of else stem
        return Outcome(name, status, message, fields, evidence or {}, self.name)
