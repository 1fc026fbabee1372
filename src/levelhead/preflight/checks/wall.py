"""Programs that a model writes: which wall stands around them on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.errors import InputError
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome

if TYPE_CHECKING:
    from levelhead.recipe.task import TaskSection
    from levelhead.recipe.workflow import SandboxLimits


class Wall(Check):
    """Runs an empty program for each task that runs programs, and reports what it was behind."""

    name = "isolation/wall/TASK"
    needs = "rewards"
    proves = Message(
        "Programs that a model writes run behind a wall on this machine.", "模型写的程序在这台机器上被隔离运行。"
    )
    how = Message(
        "Runs an empty program the way the task will, and asks what was around it.",
        "像任务那样运行一个空程序，查看它被什么隔离。",
    )
    cannot = Message("It names the wall; it does not try to climb it.", "它只说明用了什么隔离，不试图突破它。")
    bubblewrap = Message(
        "programs run behind bubblewrap, with no network and a file system of their own",
        "程序在 bubblewrap 中运行，没有网络，文件系统独立",
    )
    namespaces = Message(
        "programs run behind namespaces, with no network and a file system of their own",
        "程序在命名空间中运行，没有网络，文件系统独立",
    )
    landlock = Message(
        "programs run behind Landlock and a system-call filter, which keep files, processes and network from them",
        "程序在 Landlock 和系统调用过滤之后运行，接触不到文件、进程和网络",
    )
    open = Message(
        "programs run with no wall, and can do what your user can: {note}",
        "程序没有隔离，能做你的用户所能做的一切：{note}",
        fix=Fix(
            "install bubblewrap, and set sandbox.isolation to 'required'",
            "安装 bubblewrap，并把 sandbox.isolation 设为 'required'",
        ),
    )
    refused = Message(
        "programs cannot be isolated here: {error}",
        "这里无法隔离程序：{error}",
        fix=Fix(
            "install bubblewrap, or allow user namespaces or Landlock",
            "安装 bubblewrap，或允许用户命名空间或 Landlock",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task that runs programs."""
        for section in context.recipe.tasks:
            limits = _limits(section)
            if limits is None:
                continue
            # Only here: the light parts of a workflow task need an extra.
            from levelhead.tasks.sandbox import find_wall

            try:
                result = find_wall(limits)
            except InputError as error:
                yield self.fail(self.refused, section.title, error=str(error))
                continue
            evidence = {"wall": result.wall, "network": result.network, "note": result.note}
            walls = {"bubblewrap": self.bubblewrap, "namespaces": self.namespaces, "landlock": self.landlock}
            if result.wall in walls:
                yield self.ok(walls[result.wall], section.title, evidence=evidence)
            else:
                yield self.warn(self.open, section.title, evidence=evidence, note=result.note)


def _limits(section: TaskSection) -> SandboxLimits | None:
    """Return the bounds on a task's programs; ``None`` where it runs none."""
    from levelhead.recipe.tasks import Code, OwnPrompts, Workflow
    from levelhead.recipe.tools import ToolUse
    from levelhead.recipe.workflow import EndpointExecutor

    if isinstance(section, OwnPrompts) and isinstance(section.tools, ToolUse):
        return section.tools.sandbox if "python" in section.tools.functions else None
    if isinstance(section, Code) or (isinstance(section, Workflow) and isinstance(section.executor, EndpointExecutor)):
        return section.sandbox
    return None
