"""Tools of MCP servers over stdio (https://modelcontextprotocol.io), through the official client library.

The program to start is named by the recipe alone; a policy's calls choose a tool and its arguments.  A process answers
one call at a time, so that one that hangs, floods or dies harms the rollout whose call it was, and is replaced.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.tools import McpProgram
from levelhead.records import Tool
from levelhead.tasks.strict_json import encodable

T = TypeVar("T")

MOST_TOOLS = 128
"""Tools that a server may offer where the recipe names none of them."""
_STOP_S = 6.0
"""Seconds that a process has to end: the client library closes its input, then terminates it, then kills it."""
_LAST_WORDS = 400
"""Bytes of its error output that are remembered."""
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


class ServerDiedError(Exception):
    """The process went away instead of answering."""


class McpServer:
    """A program whose tools are called.

    Args:
        section: The recipe's ``tasks[].tools.servers[]``.
        where: Key of the section, for errors.

    Attributes:
        schemas: Its tools by name.

    Raises:
        InputError: The client library is missing, the program does not start, or lacks a tool that the recipe names.
    """

    def __init__(self, section: McpProgram, where: str) -> None:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise InputError(f"{where}: needs the package mcp, not installed here; {install_command('mcp')}") from error
        for name in ("mcp", "client"):  # the library logs each malformed line of a server's, as the server wrote it
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._section = section
        self._places = threading.BoundedSemaphore(section.processes)
        self._idle: list[_Process] = []
        self._processes: list[_Process] = []
        weakref.finalize(self, _stop_all, self._processes)
        try:
            listed = self._with_process(_listed, section.start_timeout_s)
        except (TimeoutError, ServerDiedError, OSError, ValueError) as error:
            why = f"did not answer within {section.start_timeout_s:g} s" if isinstance(error, TimeoutError) else error
            raise InputError(f"{where}: {section.command[0]} {why}") from error
        self.schemas = self._chosen(listed, where)

    def _chosen(self, listed: Mapping[str, Tool], where: str) -> dict[str, Tool]:
        names = self._section.tools or list(listed)
        if missing := [name for name in names if name not in listed]:
            raise InputError(f"{where}.tools: the server has no {missing[0]!r}; it has {', '.join(listed) or 'none'}")
        if not names or len(names) > MOST_TOOLS or (odd := [name for name in names if not _NAME.fullmatch(name)]):
            what = f"{len(names)} tools" if not names or len(names) > MOST_TOOLS else f"a tool named {odd[0]!r}"
            raise InputError(f"{where}.tools: the server offers {what}; name those that the policy may call")
        return {name: listed[name] for name in names}

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> tuple[str, bool]:
        """Call a tool, wait, and return what it gave and whether that is an error.

        Raises:
            TimeoutError: The time is up; the process is stopped.
            ServerDiedError: It died of the call.
        """
        from mcp import MCPError

        plain = json.loads(encodable(json.dumps(arguments, ensure_ascii=False)))
        try:
            return _text(self._with_process(lambda session: session.call_tool(name, plain), timeout_s))
        except MCPError as error:
            return str(error), True

    def _with_process(self, ask: Callable[[Any], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Ask an idle process, or a fresh one where there is none or it has died since it was last asked."""
        from mcp import MCPError

        with self._places:
            while True:
                process, fresh = self._take()
                try:
                    answer = process.ask(ask, timeout_s)
                except MCPError:
                    self._idle.append(process)  # an error is an answer
                    raise
                except BaseException as error:
                    process.stop()
                    if fresh or not isinstance(error, ServerDiedError):
                        raise
                else:
                    self._idle.append(process)
                    return answer

    def _take(self) -> tuple[_Process, bool]:
        """Return a process, and whether it is a fresh one."""
        try:
            return self._idle.pop(), False
        except IndexError:
            self._processes[:] = [process for process in self._processes if process.thread.is_alive()]
            self._processes.append(process := _Process(self._section))
            return process, True


class _Process:
    """One process of a server, its event loop in a thread of its own."""

    def __init__(self, section: McpProgram) -> None:
        self._section = section
        self._loop = asyncio.new_event_loop()
        self._session: Future[Any] = Future()
        self._stopped = False
        self._errors = b""
        self._listener: threading.Thread | None = None
        self._task = self._loop.create_task(self._serve())
        self.thread = threading.Thread(target=self._run, name="mcp-server", daemon=True)
        self.thread.start()

    def ask(self, ask: Callable[[Any], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Await what the session is asked, which may take ``timeout_s`` once the program has started."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        session = self._session.result(self._section.start_timeout_s)
        question = ask(session)
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop).result(timeout_s)
        except (concurrent.futures.CancelledError, RuntimeError) as error:  # the loop has ended
            question.close()
            raise ServerDiedError(self._last_words()) from error
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise
            raise ServerDiedError(self._last_words()) from error

    def stop(self) -> None:
        """Have the process ended; the thread sees to it."""
        first, self._stopped = not self._stopped, True
        with contextlib.suppress(RuntimeError):  # it has ended
            if first:  # to cancel the client library's clean-up would leave the process behind
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as error:
            if not self._session.done():
                why = f"does not start: {error}" if isinstance(error, OSError) else self._last_words()
                self._session.set_exception(ServerDiedError(why))
        for task in (others := asyncio.all_tasks(self._loop)):
            task.cancel()
        if others:
            self._loop.run_until_complete(asyncio.wait(others))
        self._loop.close()

    async def _serve(self) -> None:
        from mcp import ClientSession, StdioServerParameters, stdio_client

        command, *arguments = self._section.command
        secrets = {name: os.environ[name] for name in self._section.env if name in os.environ}
        program = StdioServerParameters(command=command, args=arguments, env=secrets, encoding_error_handler="replace")
        ours, theirs = os.pipe()
        self._listener = threading.Thread(target=self._listen, args=(ours,), name="mcp-server-errors", daemon=True)
        self._listener.start()
        with os.fdopen(theirs, "w") as errors:
            async with stdio_client(program, errlog=errors) as (read, write):
                errors.close()
                async with ClientSession(read, write) as session:
                    await session.initialize()
                    self._session.set_result(session)
                    await asyncio.Event().wait()

    def _listen(self, pipe: int) -> None:
        """Remember the end of what the process writes to its error output, and keep that from filling up."""
        with os.fdopen(pipe, "rb", buffering=0) as stream:
            while chunk := stream.read(65536):
                self._errors = (self._errors + chunk)[-_LAST_WORDS:]

    def _last_words(self) -> str:
        if self._listener is not None:
            self._listener.join(1.0)
        lines = [line for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
        return f"ended: {ascii(lines[-1].strip())[1:-1]}" if lines else "ended without an answer"


def _stop_all(processes: list[_Process]) -> None:
    """End the processes that are idle, and wait for them."""
    for process in processes:
        process.stop()
    deadline = time.monotonic() + _STOP_S
    for process in processes:
        process.thread.join(max(0.0, deadline - time.monotonic()))


async def _listed(session: Any) -> dict[str, Tool]:
    """Return the tools of a server, as chat templates take them; one page more than there may be tools."""
    from mcp.types import PaginatedRequestParams

    tools: dict[str, Tool] = {}
    cursor: str | None = None
    for _ in range(MOST_TOOLS):
        page = (await session.list_tools(params=PaginatedRequestParams(cursor=cursor))).model_dump(by_alias=True)
        for tool in page["tools"]:
            function = {
                "name": tool["name"],
                "description": tool["description"] or "",
                "parameters": tool["inputSchema"],
            }
            tools[tool["name"]] = {"type": "function", "function": function}
        cursor = page.get("nextCursor")
        if not cursor:
            break
    return tools


def _text(result: Any) -> tuple[str, bool]:
    """Return the text of a call's result, other content by its kind, and whether it is an error."""
    value = result.model_dump(by_alias=True, mode="json")
    blocks = [_block(block) for block in value["content"]]
    structured = value.get("structuredContent")
    text = "\n".join(blocks) if blocks or structured is None else json.dumps(structured, ensure_ascii=False)
    return text, bool(value.get("isError"))


def _block(block: Mapping[str, Any]) -> str:
    text = block.get("text", (block.get("resource") or {}).get("text"))
    return text if isinstance(text, str) else f"[{block.get('type')}]"
