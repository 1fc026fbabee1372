"""Tools that share a state: an object a rollout, whose public methods the policy calls (TRL's ``environment_factory``).

``reset`` is called with the row before a rollout; a text that it returns stands at the end of the last message.  Reward
functions are handed the objects as ``environments``, in the state that the rollout has left them in.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.tools import ToolUse
from levelhead.records import ChatMessage, Prompt
from levelhead.tasks import threads
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.function.rewards import copied
from levelhead.tasks.tools import Toolbox, ToolEpisode

_RESERVED = ("reset", "get_reward")


class Environments:
    """Environments of one factory, which rollouts use one after the other.

    Args:
        factory: Makes one.

    Raises:
        InputError: It makes something without ``reset``.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._idle: list[Any] = [factory()]
        self.type = type(self._idle[0])
        # Of the class: looking at the object would compute its properties.
        names = [name for name, _ in inspect.getmembers(self.type, inspect.isfunction) if not name.startswith("_")]
        if "reset" not in names:
            raise InputError(f"environment_factory: {self.type.__name__} has no method reset")
        self.names = [name for name in names if name not in _RESERVED]
        if not self.names:
            raise InputError(f"environment_factory: {self.type.__name__} has no public method that could be called")

    @property
    def methods(self) -> list[Callable[..., Any]]:
        """The tools, as methods of some environment."""
        return [getattr(self._idle[0], name) for name in self.names]

    @property
    def reward(self) -> Callable[..., Any] | None:
        """A reward function of what environments say they are worth, where they do."""
        if not hasattr(self.type, "get_reward"):
            return None
        if inspect.iscoroutinefunction(self.type.get_reward):

            async def rewards_async(environments: list[Any], **_: Any) -> list[Any]:
                return [await one.get_reward() for one in environments]

            function: Callable[..., Any] = rewards_async
        else:

            def rewards(environments: list[Any], **_: Any) -> list[Any]:
                return [one.get_reward() for one in environments]

            function = rewards
        function.__name__ = self.type.__name__
        return function

    async def lend(self, prompt: Prompt, timeout_s: float) -> tuple[Any, Any]:
        """Return an environment that is reset to a row, and what ``reset`` has returned.

        Raises:
            InputError: Making or resetting it raises.
        """
        row = copied({**prompt.facts["columns"], "prompt": prompt.facts["prompt"]})
        environment = self._idle.pop() if len(self._idle) > 1 else None

        def begin() -> tuple[Any, Any]:
            fresh = environment if environment is not None else self._factory()
            return fresh, fresh.reset(**row)

        outcome = await threads.run(begin, timeout_s)
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
        if outcome.error is not None:
            says = f"{type(outcome.error).__name__}: {outcome.error}"
            raise InputError(f"environment_factory: on {prompt.facts['where']}, reset raised {says}") from outcome.error
        started: tuple[Any, Any] = outcome.value
        return started

    def give_back(self, environment: Any) -> None:
        """Take an environment back for another rollout."""
        self._idle.append(environment)


class StatefulToolbox(Toolbox):
    """Functions, and the methods of an environment a rollout.

    Args:
        section: The recipe's ``tasks[].tools``.
        functions: Callables without a state.
        environments: The others.
    """

    def __init__(self, section: ToolUse, functions: Sequence[Callable[..., Any]], environments: Environments) -> None:
        super().__init__(section, [*functions, *environments.methods])
        self.environments = environments

    def bound(self, environment: Any) -> StatefulToolbox:
        """Return these tools with the methods of one environment."""
        clone = copy.copy(self)
        calls = {name: functools.partial(clone._call, getattr(environment, name)) for name in self.environments.names}
        clone._runs = {**self._runs, **calls}
        return clone

    @contextlib.asynccontextmanager
    async def furnished(self, answers: Sequence[Answer]) -> AsyncIterator[list[Answer]]:
        """Give answers that were not played (perfect and constant ones) an environment that is reset to their row."""
        lent: list[Any] = []
        whole: list[Answer] = []
        try:
            for answer in answers:
                if "environment" not in answer.prompt.facts:
                    environment, _ = await self.environments.lend(answer.prompt, self.section.timeout_s)
                    lent.append(environment)
                    answer = replace(answer, prompt=_with(answer.prompt, environment))
                whole.append(answer)
            yield whole
        finally:
            for environment in lent:
                self.environments.give_back(environment)


class EnvironmentEpisode(ToolEpisode):
    """One attempt at a prompt, in an environment of its own."""

    def __init__(self, task: SingleTurnTask, tools: StatefulToolbox, prompt: Prompt) -> None:
        super().__init__(task, tools, prompt)
        self._stateful = tools
        self._environment: Any = None

    async def observe(self) -> list[ChatMessage]:
        """Return the conversation so far, the first time with what ``reset`` has to say."""
        if self._environment is None:
            timeout = self._stateful.section.timeout_s
            self._environment, shown = await self._stateful.environments.lend(self._prompt, timeout)
            self._tools, self._prompt = self._stateful.bound(self._environment), _with(self._prompt, self._environment)
            if shown is not None:
                last = self._messages[-1]
                self._messages[-1] = {**last, "content": f"{last['content']}{shown}"}
        return await super().observe()

    async def close(self) -> None:
        """Give the environment back for the next episode."""
        if self._environment is not None:
            self._stateful.environments.give_back(self._environment)


def _with(prompt: Prompt, environment: Any) -> Prompt:
    return replace(prompt, facts={**prompt.facts, "environment": environment})


def toolbox(section: ToolUse, functions: Sequence[Any]) -> Toolbox:
    """Return the tools of a section, or of callables in place of its functions, an :class:`Environments` among them."""
    environments = [one for one in functions if isinstance(one, Environments)]
    plain = [one for one in functions if not isinstance(one, Environments)]
    return StatefulToolbox(section, plain, environments[0]) if environments else Toolbox(section, plain)


def start(task: SingleTurnTask, tools: Toolbox, prompt: Prompt) -> ToolEpisode:
    """Start an attempt at a prompt with tools."""
    if isinstance(tools, StatefulToolbox):
        return EnvironmentEpisode(task, tools, prompt)
    return ToolEpisode(task, tools, prompt)
