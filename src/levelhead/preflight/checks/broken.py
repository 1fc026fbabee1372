"""A check that could not be made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError, RewardError
from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:  # noqa: ARG002
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
        if isinstance(error, RewardError) and error.fix:
            known = {"check": check.name, "error": first, "fix": error.fix}
            return Outcome(name, "fail", cls.reward, known, {}, cls.name)
        if isinstance(error, InputError | RewardError):
            return Outcome(name, "fail", cls.refused, {"check": check.name, "error": first}, {}, cls.name)
        fields: dict[str, Any] = {"check": check.name, "kind": type(error).__name__, "error": first}
        return Outcome(name, "fail", cls.broke_off, fields, {"error": repr(error)[:400]}, cls.name)
