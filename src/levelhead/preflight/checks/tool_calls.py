"""A call of each tool, and its result, go through the chat template and are read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.errors import InputError
from levelhead.preflight.check import Check
from levelhead.preflight.message import Message
from levelhead.preflight.result import Outcome
from levelhead.tasks.base import SingleTurnTask

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class ToolCalls(Check):
    """Renders a call of each tool with arguments of its types, and reads it again."""

    name = "tools/round-trip/TASK"
    needs = "data"
    proves = Message(
        "A call of each tool goes through the chat template and is read again, and its result is shown.",
        "对每个工具的调用经过对话模板后能再读出来，其结果也会显示。",
    )
    how = Message(
        "Renders a call with arguments of the schema's types and a result, and parses what the template wrote.",
        "按模式的类型渲染一次调用及其结果，再解析模板写出的文字。",
    )
    cannot = Message(
        "Whether the policy writes calls at all: completions and failed_calls show it.",
        "策略究竟会不会写调用：请看采样和 failed_calls。",
    )
    right = Message("{tools} in the format {format}", "{tools}，格式为 {format}")
    wrong = Message("{error}", "{error}")

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield an outcome per task with tools that are executed."""
        for name, task in context.setup.tasks.items():
            if not isinstance(task, SingleTurnTask) or task.tools is None:
                continue
            try:
                task.tools.learn_format(context.codec, name, task.tools.room)
            except InputError as error:
                yield self.fail(self.wrong, name, error=str(error))
            else:
                yield self.ok(self.right, name, tools=", ".join(task.tools.names), format=task.tools.format)
