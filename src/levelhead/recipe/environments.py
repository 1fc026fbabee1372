"""Sections of the tasks that are played in environments: web pages, OpenEnv servers, BrowserGym, verifiers."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from levelhead.recipe.task import TaskSection

BROWSER_TASKS = ("click-test", "click-button", "focus-text", "enter-text", "click-dialog", "navigate-tree")
"""The MiniWoB++ pages of a browser task whose recipe names none."""


class EnvironmentSection(TaskSection):
    """What every task has whose episodes are played in an environment that knows several tasks."""

    tasks: list[str] | dict[str, float] = Field(min_length=1)
    """The environment's own tasks, by weight or all alike."""
    items: int = Field(1000, ge=2, le=10_000_000)
    """Seeds a task, both splits together; a seed fixes what an episode is about."""
    observation_chars: int = Field(1500, ge=100)
    """Longest page text that the policy sees; the rest is cut, with a mark."""

    @property
    def weights(self) -> dict[str, float]:
        """Task name to its share of the prompts; shares sum to one."""
        weights = self.tasks if isinstance(self.tasks, dict) else dict.fromkeys(self.tasks, 1.0)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    @model_validator(mode="after")
    def _weights_are_positive(self) -> Self:
        bad = [name for name, weight in self.tasks.items() if weight <= 0] if isinstance(self.tasks, dict) else []
        if bad:
            raise ValueError(f"the weight of {bad[0]!r} must be above 0; leave it out instead")
        if isinstance(self.tasks, list) and len(set(self.tasks)) < len(self.tasks):
            raise ValueError("a task is listed twice; give weights instead, as in {click-test: 2, click-link: 1}")
        return self


class Browser(EnvironmentSection):
    """MiniWoB++ web pages in a real browser, one action a turn (Liu et al. 2018)."""

    task = "levelhead.contrib.browser.task:BrowserTask"
    kind: Literal["browser"]
    """``browser``."""
    tasks: list[str] | dict[str, float] = Field(default_factory=lambda: list(BROWSER_TASKS), min_length=1)
    """MiniWoB++ pages, by weight or all alike (docs/browser.md lists them)."""
    step_limit: int | None = Field(None, ge=1)
    """Most actions an episode may take; each page's own limit unless given."""
    step_limits: dict[str, int] = Field(default_factory=dict)
    """Step limits of single pages; they win over ``step_limit``."""
    partial_credit: float = Field(0.0, ge=0, le=1)
    """Weight of the page's graded reward in the total: ``(1 - w) * success + w * partial``."""
    pages: int = Field(16, ge=1, le=1024)
    """Episodes that may be live at once, each in a browser page of its own."""
    spare_pages: int = Field(8, ge=0, le=1024)
    """Further pages kept open between episodes, so that a change of task need not load one."""
    action_timeout: float = Field(10.0, gt=0)
    """Seconds after which a page that does not answer is given up."""
    executable: str | None = None
    """Path of a Chromium; found unless given (Playwright's own, ``chromium``, ``google-chrome``)."""


class OpenEnv(EnvironmentSection):
    """An OpenEnv server: environments behind a web socket, one a connection."""

    task = "levelhead.contrib.openenv:OpenEnvTask"
    kind: Literal["openenv"]
    """``openenv``."""
    url: str = Field(pattern=r"^(https?|wss?)://\S+$")
    """The server's address, ``http://host:port`` or ``ws://host:port``; ``/ws`` is added."""
    tasks: list[str] | dict[str, float] = Field(default_factory=lambda: [""], min_length=1)
    """Tasks by the name that ``reset`` takes as ``task_name``; an empty name sends none."""
    system: str | None = None
    """System message; the browser task's own, or one on tools, unless given."""
    observation: dict[str, str] = Field(default_factory=lambda: {"goal": "Goal", "error": "Error", "text": "Page"})
    """Fields of an observation that the policy sees, in order, and the word before each; the last is the page."""
    action: str = Field("action_str", min_length=1)
    """Field of the action that takes what the policy wrote; of no use with ``tools``."""
    tools: bool = False
    """The actions are calls of the server's tools (``CallToolAction``): the policy is shown those that it lists, calls
    them in its chat template's own format, and sees the whole conversation; a turn that calls nothing ends the
    episode."""
    step_limit: int = Field(10, ge=1)
    """Most actions an episode may take."""
    success_above: float = 0.0
    """An episode whose rewards add up to more than this is a success."""
    sessions: int = Field(8, ge=1, le=4096)
    """Episodes that may be live at once, each on a connection of its own; no more than the server allows."""
    timeout: float = Field(60.0, gt=0)
    """Seconds after which a server that does not answer is given up."""


class BrowserGym(EnvironmentSection):
    """Environments of BrowserGym, where it is installed: WebArena, WorkArena, MiniWoB and others."""

    task = "levelhead.contrib.browsergym:BrowserGymTask"
    kind: Literal["browsergym"]
    """``browsergym``."""
    tasks: list[str] | dict[str, float] = Field(min_length=1)
    """Gymnasium names, ``browsergym/miniwob.click-test``, by weight or all alike."""
    packages: list[str] = Field(default_factory=list)
    """Modules that register the names when imported (``browsergym.miniwob``); taken from the names unless given."""
    step_limit: int = Field(10, ge=1)
    """Most actions an episode may take."""
    sessions: int = Field(1, ge=1, le=4096)
    """Episodes that may be live at once; they share a thread."""


class Verifiers(TaskSection):
    """An environment written with PrimeIntellect's ``verifiers`` (1.0 interface), as it is installed."""

    task = "levelhead.contrib.verifiers:VerifiersTask"
    kind: Literal["verifiers"]
    """``verifiers``."""
    env: str = Field(min_length=1)
    """The environment's package, ``glossary`` or ``owner/glossary``, which you have installed."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment's task set, by its own names."""
    items: int = Field(1000, ge=2, le=10_000_000)
    """Most rows that are taken of the environment, both splits together."""
    turns: int = Field(8, ge=1, le=1024)
    """Most answers of an episode."""
    sessions: int = Field(8, ge=1, le=4096)
    """Episodes that may be live at once."""
    timeout_s: float = Field(600.0, gt=0, le=86_400)
    """Longest that the environment may take between two answers, in seconds."""
