"""The browser task in TRL's ``GRPOTrainer``, as ``environment_factory``; TRL itself is not imported.

A script with it:

    from levelhead.integrations.trl import BrowserEnvironments, browser_reward

    environments = BrowserEnvironments(tasks=["click-test", "enter-text"], pages=32)
    trainer = GRPOTrainer(
        model, reward_funcs=[browser_reward], environment_factory=environments,
        train_dataset=Dataset.from_list(environments.rows("train", seed=0, count=1000)), args=...,
    )
    trainer.train()
    environments.close()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from itertools import islice
from typing import Any

from levelhead.contrib.browser.actions import Action, Verb
from levelhead.contrib.browser.baselines import unbroken
from levelhead.contrib.browser.episode import BrowserEpisode
from levelhead.contrib.browser.task import BrowserTask
from levelhead.errors import InputError
from levelhead.integrations.trl.tasks import Row
from levelhead.recipe.environments import Browser
from levelhead.tasks.base import EpisodeLostError, Split
from levelhead.training.loop import EventLoop

SYSTEM_PROMPT = (
    'You operate a web page. Its elements are shown as [number] role "name". '
    "Use the tools to reach the goal; each returns the page as it is then."
)
"""System message of :meth:`BrowserEnvironments.rows`."""


class BrowserEnvironments:
    """Makes one environment a rollout, all on pages of one browser.  Pass it as ``environment_factory``.

    Args:
        keys: Keys of the recipe's browser section.  TRL plays all rollouts of a batch at once, so ``pages`` (64 unless
            given) must be at least that many.

    Raises:
        InputError: A page does not exist, or a package is missing.
    """

    def __init__(self, **keys: Any) -> None:
        self.task = BrowserTask(Browser.model_validate({"kind": "browser", "pages": 64, **keys}))
        self.loop = EventLoop()
        self._made = 0

    def __call__(self) -> BrowserTools:
        """Make an environment for one episode.

        Raises:
            InputError: There are more environments than pages: the next episode would wait for ever.
        """
        if self._made >= self.task.concurrency:
            raise InputError(f"TRL plays more than {self._made} episodes at once; give BrowserEnvironments more pages=")
        self._made += 1
        return BrowserTools(self.task, self.loop)

    def rows(self, split: Split, seed: int, count: int) -> list[Row]:
        """Return rows of a data set: ``prompt``, and ``task`` and ``seed``, which ``reset`` takes."""
        prompt = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": ""}]
        return [{"prompt": prompt, **one.facts} for one in islice(self.task.prompts(split, seed), count)]

    def close(self) -> None:
        """Close the browser and its event loop."""
        self.loop.run(self.task.close())
        self.loop.close()


def _tool(verb: Verb, does: str, **arguments: str) -> Callable[..., str]:
    """Make the method that takes one action; TRL shows the model its signature and docstring.

    Args:
        verb: The action.
        does: What it does, in one sentence.
        arguments: Name of each argument and what it is; ``element`` and ``target`` are numbers, any other is text.
    """

    def tool(self: BrowserTools, *positional: Any, **named: Any) -> str:
        values = signature.bind(self, *positional, **named).arguments
        text = next((values[name] for name, kind in kinds.items() if kind is str), "")
        return self._act(Action(verb, values.get("element"), text, to=values.get("target")))

    kinds = {name: int if name in ("element", "target") else str for name in arguments}
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for n, kind in kinds.items()]
    signature = Signature(parameters, return_annotation=str)
    described = "".join(f"    {name}: {text}\n" for name, text in arguments.items())
    tool.__doc__ = f"{does}\n\nArgs:\n{described}\nReturns:\n    The page as it is then."
    tool.__name__, tool.__annotations__ = verb, {**kinds, "return": str}
    vars(tool)["__signature__"] = signature
    return tool


class BrowserTools:
    """One rollout's page.  TRL shows the model every public method but ``reset`` as a tool, with its docstring.

    Attributes:
        reward: Of the episode; 0 until it is over, ``None`` if the browser broke, which is not the model's fault.
    """

    def __init__(self, task: BrowserTask, loop: EventLoop) -> None:
        self.reward: float | None = 0.0
        self._task = task
        self._loop = loop
        self._episode: BrowserEpisode | None = None

    def reset(self, task: str = "", seed: int = 0, **_: Any) -> str:
        """Start the episode of a page and seed, and return goal and page; TRL adds them to the last user message."""
        self._let_go()
        self.reward = 0.0
        prompt = self._task.prompt(task or next(iter(self._task.section.weights)), seed)
        try:
            self._episode = self._loop.run(unbroken(lambda: self._task.open(prompt)))
        except EpisodeLostError:
            self.reward = None
            return "The page cannot be opened."
        return f"Goal: {self._episode.view.goal}\n{self._page()}"

    click = _tool("click", "Click an element.", element="The number of the element.")
    fill = _tool(
        "fill",
        "Write text into a field, over what it holds.",
        element="The number of the field.",
        text="What to write.",
    )
    type = _tool("type", "Type text at the end of a field.", element="The number of the field.", text="What to type.")
    press = _tool("press", "Press a key.", key="Name of the key, such as Enter, Tab, ArrowDown or Control+a.")
    select = _tool(
        "select", "Choose an option of a list.", element="The number of the list.", option="The option's text."
    )
    focus = _tool("focus", "Move the focus to an element.", element="The number of the element.")
    hover = _tool("hover", "Point the mouse at an element.", element="The number of the element.")
    scroll = _tool(
        "scroll",
        "Scroll a scroll area or a long text field.",
        element="The number of the area.",
        direction="up or down.",
    )
    drag = _tool(
        "drag",
        "Drag an element onto another.",
        element="The number of the element to drag.",
        target="The number of the element to drop it on.",
    )

    def _act(self, action: Action) -> str:
        if self._episode is None:
            return "The episode is over."
        try:
            # Through the grammar, as any policy's action: what the model passed may be of any type and value.
            step = self._loop.run(self._episode.act(str(action)))
        except EpisodeLostError:
            self._episode, self.reward = None, None
            return "The page was lost."
        if step.score is None:
            return self._page()
        self._episode, self.reward = None, step.score.total
        return "The episode is over."

    def _page(self) -> str:
        assert self._episode is not None  # noqa: S101 - both callers hold one
        error = f"Error: {self._episode.error}\n" if self._episode.error else ""
        return f"{error}Page:\n{self._episode.page_text}"

    def _let_go(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._loop.run(episode.close())


def browser_reward(environments: Sequence[BrowserTools], **_: Any) -> list[float | None]:
    """Return each rollout's reward: TRL's ``reward_funcs`` entry beside :class:`BrowserEnvironments`."""
    return [environment.reward for environment in environments]
