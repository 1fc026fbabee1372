"""BrowserGym's environments as a task, played on the one thread of this process that BrowserGym can be used from.

BrowserGym shows a page as Chromium's accessibility tree, whose nodes carry a ``browsergym_id``, and takes actions as
calls such as ``click('12')``.  The policy sees and writes what it does in the browser task.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Protocol, TypeVar

from levelhead.contrib.browser.actions import Action, ActionError, parse_action
from levelhead.contrib.browser.view import SYSTEM_PROMPT, Element, Line, View, turn_messages
from levelhead.errors import InputError
from levelhead.recipe.environments import BrowserGym
from levelhead.records import ChatMessage, Prompt, Score
from levelhead.tasks.environment import EnvironmentTask, SeededEpisode

T = TypeVar("T")


class GymEnvironment(Protocol):
    """What is used of a Gymnasium environment."""

    def reset(self, *, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Start an episode: observation and info."""
        ...

    def step(self, action: str, /) -> tuple[Mapping[str, Any], Any, bool, bool, Mapping[str, Any]]:
        """Take an action: observation, reward, terminated, truncated, info."""
        ...

    def close(self) -> None:
        """Free the browser and all else that it holds."""
        ...


class BrowserGymTask(EnvironmentTask):
    """Environments of BrowserGym by their Gymnasium names.

    BrowserGym starts two browsers an episode
    and all episodes share a thread, so this is the slow door: for WebArena, WorkArena and the like.

    Args:
        section: The recipe's section.
        make: Makes an environment of a name; BrowserGym's own unless given.

    Raises:
        InputError: BrowserGym, or a package with the environments, is not installed.
    """

    def __init__(self, section: BrowserGym, make: Callable[[str], GymEnvironment] | None = None) -> None:
        super().__init__(section, SYSTEM_PROMPT)
        self.section = section
        self._make = make or _maker(section)
        self._idle: dict[str, list[GymEnvironment]] = {}

    @property
    def concurrency(self) -> int:
        """Most episodes that can be live at once."""
        return self.section.sessions

    def canonical_action(self, text: str) -> str:
        """Return one turn's action as the grammar prints it; what is no action is its own first line."""
        try:
            return str(parse_action(text))
        except ActionError:
            return super().canonical_action(text)

    def episode(self, prompt: Prompt) -> BrowserGymEpisode:
        """Start an attempt at a prompt."""
        return BrowserGymEpisode(self, str(prompt.facts["task"]), int(prompt.facts["seed"]))

    async def call(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Run a function on BrowserGym's thread."""
        call = functools.partial(function, *arguments, **keywords)
        return await asyncio.get_running_loop().run_in_executor(_thread(), call)

    async def lend(self, name: str) -> GymEnvironment:
        """Lend an environment, a used one if there is one."""
        idle = self._idle.get(name)
        return idle.pop() if idle else await self.call(self._make, name)

    async def give_back(self, name: str, environment: GymEnvironment, *, fit: bool) -> None:
        """Take an environment back for another episode; one that is not fit for it is closed."""
        if fit:
            self._idle.setdefault(name, []).append(environment)
            return
        try:
            await self.call(environment.close)
        except Exception as error:
            self.report("environment-lost", f"{name} does not close: {type(error).__name__}")

    async def close(self) -> None:
        """Close all environments that play no episode."""
        idle, self._idle = self._idle, {}
        for environments in idle.values():
            for environment in environments:
                await self.call(environment.close)


class BrowserGymEpisode(SeededEpisode[GymEnvironment]):
    """One episode of one environment."""

    def __init__(self, task: BrowserGymTask, name: str, seed: int) -> None:
        super().__init__(name, seed, task.section.step_limit, task.report)
        self.view = View()
        self.error = ""
        self._task = task
        self._ids: list[str] = []
        self._misread = 0

    async def _open(self) -> None:
        self.place = await self._task.lend(self.name)
        observation, _ = await self._task.call(self.place.reset, seed=self.seed)
        self.view, self._ids = view_of(observation)

    async def _give_back(self, place: GymEnvironment, *, fit: bool) -> None:
        await self._task.give_back(self.name, place, fit=fit)

    def _messages(self) -> list[ChatMessage]:
        return turn_messages(self.view, self.step, self.error, self._task.section.observation_chars)

    async def _perform(self, place: GymEnvironment, text: str) -> float:
        try:
            call = call_of(parse_action(text), self._ids)
        except ActionError as error:
            self._misread += 1
            self.error = str(error)
            return 0.0
        observation, reward, terminated, truncated, _ = await self._task.call(place.step, call)
        self.view, self._ids = view_of(observation)
        self.error = str(observation.get("last_action_error") or "").partition("\n")[0]
        self._ended = "environment" if terminated or truncated else ""
        return float(reward)

    def _fault(self, error: Exception) -> tuple[str, str]:
        return "environment-lost", f"{type(error).__name__}: {error}".partition("\n")[0]

    def _score(self, facts: Mapping[str, Any]) -> Score:
        parts = {"success": float(self.reward > 0), "return": self.reward}
        info = {"task": self.name, **facts, "unread": self._misread}
        return Score(self.reward, parts, valid=self._misread == 0, info=info)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """Return the thread of all BrowserGym tasks: its Playwright is global, and bound to the thread that started it."""
    return ThreadPoolExecutor(1, "levelhead-browsergym")


def _maker(section: BrowserGym) -> Callable[[str], GymEnvironment]:
    # browsergym/miniwob.click-test is registered by browsergym.miniwob, browsergym/openended by browsergym.core.
    benchmarks = {name.removeprefix("browsergym/").partition(".")[0] for name in section.weights}
    packages = section.packages or [f"browsergym.{'core' if b == 'openended' else b}" for b in sorted(benchmarks)]
    try:
        gymnasium = import_module("gymnasium")
        actions = import_module("browsergym.core.action.highlevel").HighLevelActionSet(["bid", "coord"])
        for package in packages:
            import_module(package)
    except ImportError as error:
        raise InputError(
            f"the browsergym task needs BrowserGym and the packages of its tasks ({', '.join(packages)}): {error}; "
            "pip install browsergym"
        ) from error
    if "browsergym.miniwob" in packages and not os.environ.get("MINIWOB_URL"):
        raise InputError(
            "BrowserGym's MiniWoB++ needs MINIWOB_URL in the environment, the address of its pages: "
            "file:///.../miniwob/html/miniwob/"
        )

    def make(name: str) -> GymEnvironment:
        environment: GymEnvironment = gymnasium.make(
            name, action_mapping=actions.to_python_code, disable_env_checker=True
        )
        return environment

    return make


NUMBERED = frozenset(
    {"button", "link", "textbox", "searchbox", "checkbox", "radio", "combobox", "listbox", "option", "menuitem"}
    | {"menuitemcheckbox", "menuitemradio", "tab", "slider", "spinbutton", "switch", "treeitem"}
)
"""Roles of elements that can be acted on; others are numbered where BrowserGym says that they take clicks."""

_UNSEEN = frozenset({"InlineTextBox", "none", "LineBreak"})
_CONTAINERS = frozenset({"generic", "RootWebArea", "LabelText", "paragraph", "list", "listitem"})
_STATES = ("checked", "selected", "pressed", "expanded", "disabled", "focused")
_SCROLL = 300


def view_of(observation: Mapping[str, Any]) -> tuple[View, list[str]]:
    """Turn BrowserGym's observation into a page.

    Returns:
        The page, and the ``browsergym_id`` of each numbered element, by its number less one.
    """
    reader = _Reader(observation)
    return View(goal=str(observation.get("goal") or ""), lines=tuple(reader.lines)), reader.ids


def call_of(action: Action, ids: Sequence[str]) -> str:
    """Write an action as BrowserGym's calls, one a line; what the policy wrote appears in them as quoted text only.

    Raises:
        ActionError: There is no element of that number, or BrowserGym has no such action.
    """

    def bid(ref: int | None) -> str:
        if ref is None or not 1 <= ref <= len(ids):
            raise ActionError(f"there is no element {ref}")
        return repr(ids[ref - 1])

    text = repr(action.text)
    match action.verb:
        case "click" | "focus" | "hover":
            return f"{action.verb}({bid(action.ref)})"
        case "fill":
            return f"fill({bid(action.ref)}, {text})"
        case "type":
            return f"focus({bid(action.ref)})\nkeyboard_type({text})"
        case "press":
            return f"keyboard_press({text})" if action.ref is None else f"press({bid(action.ref)}, {text})"
        case "select":
            return f"select_option({bid(action.ref)}, {text})"
        case "scroll":
            return f"scroll(0, {_SCROLL if action.text == 'down' else -_SCROLL})"
        case "drag":
            if action.to is None:
                raise ActionError("drag from one element to another: drag(n, m)")
            return f"drag_and_drop({bid(action.ref)}, {bid(action.to)})"
        case "noop":
            return "noop()"


class _Reader:
    def __init__(self, observation: Mapping[str, Any]) -> None:
        nodes = observation["axtree_object"]["nodes"]
        self.lines: list[Line] = []
        self.ids: list[str] = []
        self._nodes: dict[str, Mapping[str, Any]] = {str(node["nodeId"]): node for node in nodes}
        self._about: Mapping[str, Mapping[str, Any]] = observation.get("extra_element_properties") or {}
        if nodes:
            self._visit(str(nodes[0]["nodeId"]), 0, "")

    def _visit(self, key: str, depth: int, parent: str) -> None:
        node = self._nodes.get(key)
        if node is None:
            return
        role, name = _value(node, "role"), _value(node, "name")
        below = depth
        if not node.get("ignored") and role not in _UNSEEN:
            line = self._line(node, role, name, parent)
            if line is not None:
                self.lines.append(Line(depth, (line,)))
                below = depth + 1
                parent = f"{line.name} {line.value}" if isinstance(line, Element) else line
        for child in node.get("childIds", ()):
            self._visit(str(child), below, parent)

    def _line(self, node: Mapping[str, Any], role: str, name: str, parent: str) -> str | Element | None:
        bid = node.get("browsergym_id")
        about = self._about.get(str(bid), {})
        if about.get("visibility") == 0:
            return None
        clickable = bool(about.get("clickable"))
        if clickable and role in _CONTAINERS:
            name = self._text_only(node)
            role = "item" if name else role
        if bid is not None and (role in NUMBERED or (clickable and role not in _CONTAINERS)):
            self.ids.append(str(bid))
            states = tuple(
                "collapsed" if state == "expanded" and not on else state
                for state, on in _properties(node).items()
                if on or state == "expanded"
            )
            return Element(len(self.ids), role, name, _value(node, "value"), states)
        if role == "StaticText":
            return name if name.strip() and name.strip() not in parent else None
        return f"{role} {name}".strip() if name and role not in _CONTAINERS else None

    def _text_only(self, node: Mapping[str, Any]) -> str:
        """Return the text of a node that holds nothing else, and nothing where something in it can be acted on."""
        texts = []
        for key in node.get("childIds", ()):
            child = self._nodes.get(str(key), {})
            role = _value(child, "role")
            about = self._about.get(str(child.get("browsergym_id")), {})
            if role in NUMBERED or (about.get("clickable") and role not in ("StaticText", *_UNSEEN)):
                return ""
            if role != "InlineTextBox":
                texts.append(_value(child, "name") if role == "StaticText" else self._text_only(child))
        return " ".join(text for text in texts if text)


def _value(node: Mapping[str, Any], field: str) -> str:
    entry = node.get(field)
    return str(entry.get("value", "")).strip() if isinstance(entry, Mapping) else ""


def _properties(node: Mapping[str, Any]) -> dict[str, bool]:
    properties = {str(one.get("name")): one.get("value", {}).get("value") for one in node.get("properties", ())}
    return {state: properties[state] in (True, "true") for state in _STATES if state in properties}
