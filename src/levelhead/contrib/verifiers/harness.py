"""The program that ``verifiers`` runs as its agent: a chat loop in this process, with the tools of the environment.

It stands in the place of the harnesses that run programs or a shell on this machine: nothing that the policy writes is
executed, and only the environment's own tools are called.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

NO_ROOM = "context_length_exceeded"
"""What the endpoint answers where a conversation has outgrown the policy's context."""


_WAIT = httpx.Timeout(None, connect=10)
"""A turn takes as long as its sampling; the task bounds the environment."""


class PolicyHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Asks the policy until it answers without calling a tool."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,  # noqa: ARG002 - the signature is the package's
        runtime: vf.Runtime,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Run one segment of the conversation; ends with success where the context is full."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, connected = await connect_mcp({"mcpServers": servers}, stack, set())
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=_WAIT, trust_env=False))
            while True:
                body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                response = await client.post(
                    f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
                )
                if response.is_error:
                    failed = NO_ROOM not in response.text
                    return vf.ProgramResult(exit_code=int(failed), stdout="", stderr=response.text)
                message = response.json()["choices"][0]["message"]
                messages.append(message)
                for call in message.get("tool_calls") or ():
                    name = call["function"]["name"]
                    if name in dispatch:
                        text = await call_mcp(connected, dispatch, name, json.loads(call["function"]["arguments"]))
                    else:
                        text = f"error: there is no tool called {name}; there are {', '.join(dispatch)}"
                    messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": text})
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")


HARNESS = "levelhead_policy_harness"
"""Name of this module for ``verifiers``, which imports harnesses by names without dots."""
sys.modules[HARNESS] = sys.modules[__name__]

__all__ = ["PolicyHarness"]
