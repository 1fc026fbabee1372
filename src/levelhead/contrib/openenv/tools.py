"""Tools of an OpenEnv server: ``ListToolsAction`` and ``CallToolAction`` of its RFC 003, and what they return."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from levelhead.contrib.openenv.wire import WireError, written
from levelhead.errors import InputError
from levelhead.recipe.environments import OpenEnv
from levelhead.records import Tool
from levelhead.tasks.tool_formats import Call


def list_tools(section: OpenEnv) -> list[Tool]:
    """Return the schemas of a server's tools, as chat templates take them.

    Raises:
        InputError: The server is not there, or lists no tools.
    """
    from levelhead.contrib.openenv.client import OpenEnvClient, UnreachableError

    async def ask() -> Mapping[str, Any]:
        client = OpenEnvClient(section.url, section.timeout)
        try:
            return (await client.step({"type": "list_tools"})).observation
        finally:
            await client.close()

    try:
        with ThreadPoolExecutor(1) as other:  # this thread may have an event loop that runs
            tools = other.submit(lambda: asyncio.run(ask())).result().get("tools")
    except UnreachableError as error:
        raise InputError(f"{error}; start the server, or correct tasks[].url") from error
    except WireError as error:
        raise InputError(f"tasks[].tools: {section.url} lists no tools: {error}; leave tools out") from error
    schemas = [_schema(one) for one in tools if isinstance(one, dict)] if isinstance(tools, list) else []
    if not schemas:
        raise InputError(f"tasks[].tools: {section.url} lists no tools; leave tools out")
    return schemas


def _schema(tool: Mapping[str, Any]) -> Tool:
    parameters = tool.get("input_schema")
    function = {
        "name": str(tool.get("name")),
        "description": str(tool.get("description") or ""),
        "parameters": parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def call_action(call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action that calls a tool."""
    return {"type": "call_tool", "tool_name": call.name, "arguments": dict(arguments)}


def result_of(observation: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what a call's observation shows the policy, and whether the call failed."""
    error, result = observation.get("error"), observation.get("result")
    if error is not None:
        return f"error: {written(error.get('message') if isinstance(error, dict) else error)}", True
    if not isinstance(result, dict) or not isinstance(content := result.get("content"), list):
        return written(result), False
    texts = [one["text"] for one in content if isinstance(one, dict) and isinstance(one.get("text"), str)]
    failed = result.get("is_error") is True
    return "error: " * failed + written("\n".join(texts)), failed
