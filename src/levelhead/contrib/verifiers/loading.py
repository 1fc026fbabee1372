"""Loading an environment of ``verifiers``; what cannot be honoured is refused here, before the first step."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, ValidationError

from levelhead.contrib.verifiers.harness import HARNESS
from levelhead.errors import InputError
from levelhead.recipe.environments import Verifiers
from levelhead.records import Tool

_STOOD_FOR = ("null", "bash")
"""Harnesses that ours takes the place of: the package's chat loop, and the default of those who ask for none."""


def load(section: Verifiers) -> tuple[vf.Env, Sequence[vf.Task], Sequence[Tool]]:
    """Load an environment and its rows.

    Returns:
        The package's object, its tasks in its own order, and the schemas of its tools under the names that the policy
        sees.

    Raises:
        InputError: It cannot be loaded, or needs what is not there: a second agent, a program as its agent, a
            container, a judge's key, tools on another machine.
    """
    logging.getLogger("verifiers").setLevel(logging.WARNING)  # else a line an episode and server
    where = f"tasks[].env: {section.env}"
    try:
        return _load(section, where)
    except InputError:
        raise
    except ValidationError as error:
        wrong = error.errors()[0]
        raise InputError(f"tasks[].args: {'.'.join(map(str, wrong['loc'][1:]))}: {wrong['msg']} ({where})") from error
    except Exception as error:
        says = (str(error).strip() or "no reason given").splitlines()[0]
        raise InputError(f"{where} cannot be loaded: {type(error).__name__}: {says[:300]}") from error


def _load(section: Verifiers, where: str) -> tuple[vf.Env, Sequence[vf.Task], Sequence[Tool]]:
    raw: dict[str, Any] = {"taskset": {**section.args, "id": section.env}}
    plain = vf.resolve_env_config(raw)
    roles = [name for name, field in type(plain).model_fields.items() if isinstance(field.default, vf.AgentConfig)]
    if len(roles) != 1:
        raise InputError(f"{where} has {len(roles)} agents ({', '.join(roles)}); environments of one can be trained on")
    pinned = getattr(plain, roles[0]).harness
    if pinned is not None and pinned.id not in _STOOD_FOR:
        raise InputError(f"{where} runs the program {pinned.id} as its agent; a chat with tools can be trained on")
    agent = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}, "max_turns": section.turns}
    env = vf.load_environment(vf.resolve_env_config({**raw, roles[0]: agent}))
    for judge in _judges(env.config.taskset):
        if not os.environ.get(judge.api_key_var):
            raise InputError(
                f"{where} is judged by {judge.model}, whose key {judge.api_key_var} holds, which is not set"
            )
    rows = list(itertools.islice(env.taskset, section.items))
    if any(type(row).NEEDS_CONTAINER or row.data.image for row in rows):
        raise InputError(f"{where} needs containers, which its tasks run in; environments without can be trained on")
    toolsets = [*env.taskset.toolsets(env.taskset.config), *type(rows[0]).toolsets(env.taskset.config.task)]
    if remote := [toolset.config.url for toolset in toolsets if toolset.config.url]:
        raise InputError(f"{where} calls tools at {remote[0]}; tools that start on this machine can be trained on")
    with ThreadPoolExecutor(1) as pool:  # whether or not a loop runs in this thread
        tools = pool.submit(asyncio.run, _schemas(toolsets)).result()
    return env, rows, tools


def _judges(config: BaseModel) -> Iterator[vf.JudgeConfig]:
    """Yield the judges that settings name, however deep."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, vf.JudgeConfig):
                yield one
            elif isinstance(one, BaseModel):
                yield from _judges(one)


async def _schemas(toolsets: Sequence[vf.Toolset]) -> list[Tool]:
    schemas: list[Tool] = []
    for toolset in toolsets:
        server = MCPServer(toolset.server_name or "tools")
        toolset.register(server)
        for tool in await server.list_tools():
            name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
            function = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
            schemas.append({"type": "function", "function": function})
    return schemas
