"""Going on with a run: from which checkpoint, with which recipe, and what must not have changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.recipe import Recipe, dump
from levelhead.recipe.history import ABSENT, Change, History, fingerprints
from levelhead.records import Event
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.checkpoint_files import State, read_state
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.prepare import make_objective
from levelhead.training.rundir import RunDir

CHANGED = "recipe-changed"
"""Code of the event that a run goes on with another recipe."""
WENT_BACK = "went-back"
"""Code of the event that a run goes on from a checkpoint that was not its newest."""
FROM = Message("goes on from {where}", "从 {where} 继续")
THE_START = Message("the start", "起点")
AS_ASKED = Message(", as asked", "（按要求）")
RENAMED = Message(
    "; newer checkpoints were renamed to {names} and may be deleted", "；更新的检查点已改名为 {names}，可以删除"
)
WITH = Message("goes on with {name}, accepted by the user: {changes}", "按 {name} 继续，改动已由用户接受：{changes}")
ALL = "all"
"""Accepts every change."""

MOST_SHOWN = 8
"""Changes that an error lists."""

_SHAPE = "a checkpoint holds the weights of its own model"
_OWN = "a checkpoint holds its own"
_TASKS = "a checkpoint's place in the data is that of its tasks"
_FIXED: tuple[tuple[str, str], ...] = (
    ("seed", "every draw so far came from it"),
    ("model.name", _SHAPE),
    ("model.preset", _SHAPE),
    ("model.revision", _SHAPE),
    ("model.tiny.*", _SHAPE),
    ("model.lora", _SHAPE),
    ("model.lora.r", _SHAPE),
    ("model.lora.alpha", _SHAPE),
    ("model.lora.target_modules*", _SHAPE),
    ("model.lora.modules_to_save*", _SHAPE),
    ("model.tokenizer", _OWN),
    ("model.chat_template", _OWN),
    ("sft", "the stages before a checkpoint are as they were"),
)
"""Keys that can never change once there is a checkpoint, and why."""


@dataclass(slots=True)
class Resumption:
    """How a run goes on.

    Attributes:
        recipe: What the user asks for now.
        history: What was asked for before.
        checkpoint: The checkpoint to go on from; ``None`` to begin again.
        state: Of that checkpoint.
        went_back: Whether that checkpoint was asked for by name.
        accepted: What has changed since the newest recipe of the run, and is accepted.
        applied: What has changed since the checkpoint was written.
    """

    recipe: Recipe
    history: History
    checkpoint: Path | None = None
    state: State | None = None
    went_back: bool = False
    accepted: Sequence[Change] = ()
    applied: Sequence[Change] = ()
    _events: list[Event] = field(default_factory=list)

    def set_aside(self, checkpoints: Checkpoints) -> None:
        """Put checkpoints that are newer than the one that the run goes on from out of the way."""
        aside = [path.name for path in checkpoints.set_aside(self.checkpoint, asked=self.went_back)]
        if not self.went_back and not aside:
            return
        text = FROM(where=self.checkpoint.name if self.checkpoint else THE_START())
        text += AS_ASKED() if self.went_back else ""
        if aside:
            text += RENAMED(names=", ".join(aside))
        self._events.append(Event(0, WENT_BACK, "info", text, None, {"aside": aside}))

    def record(self, folder: RunDir) -> None:
        """Write an accepted recipe, and the fingerprints of its files, beside those of before."""
        if (newest := self.history.newest) is not None and not self.accepted:
            if self.state is not None and self.state.recipe != newest:  # the event was cut off with later steps
                self._tell(newest, self.applied)
            return
        name, inputs = self.history.next_names()
        lines = "".join(f"#   {change}\n".replace("\r", " ") for change in self.accepted)
        step = f"after step {self.state.step} of {self.state.stage}" if self.state else "at the start"
        head = f"# Accepted {step}:\n{lines}" if lines else ""
        folder.write_json(inputs, fingerprints(self.recipe))
        folder.write(name, head + dump(self.recipe))
        if self.accepted:
            self._tell(name, self.accepted)
        self.accepted = ()

    def _tell(self, name: str, changes: Sequence[Change]) -> None:
        keys = [change.key for change in changes]
        text = WITH(name=name, changes=_listed(changes))
        self._events.append(Event(0, CHANGED, "info", text, None, {"file": name, "keys": keys}))

    def events(self, step: int) -> list[Event]:
        """Return and forget what is to be told of the resumption, at a step."""
        events = [Event(step, e.code, e.severity, e.message, e.action, e.evidence) for e in self._events]
        self._events.clear()
        return events

    def touched(self, *patterns: str) -> bool:
        """Whether a key that matches one of some patterns has changed since the checkpoint was written."""
        return any(fnmatch(change.key, pattern) for change in self.applied for pattern in patterns)


def plan_resumption(
    folder: RunDir, recipe: Recipe, *, start: str | None = None, accept: Collection[str] = ()
) -> Resumption:
    """Decide from where and with what a run goes on; writes nothing.

    Args:
        folder: Folder of the run.
        recipe: What the user asks for now.
        start: Name of a step checkpoint, or ``start``; the newest one unless given.
        accept: Keys (or sections) whose changes are accepted, or ``all``.

    Raises:
        InputError: There is no such checkpoint, or the recipe has changed in a way that cannot be or is not accepted.
    """
    checkpoints = Checkpoints(folder, 1, {})
    checkpoint = checkpoints.latest() if start is None else checkpoints.named(start)
    state = None if checkpoint is None else read_state(checkpoint)
    history = History(folder.path)
    plan = Resumption(recipe, history, checkpoint, state, start is not None)
    newest = history.newest
    if newest is None:
        return plan
    plan.accepted = history.changes(newest, recipe)
    if state is not None:
        then = state.recipe if (folder.path / state.recipe).is_file() else newest
        plan.applied = plan.accepted if then == newest else history.changes(then, recipe)
        _refuse_impossible(folder, plan, state)
    open_changes = [change for change in plan.accepted if not _covers(accept, change.key)]
    if open_changes:
        raise InputError(_not_accepted(folder.path, open_changes))
    return plan


def load_trainer(trainer: GrpoTrainer, saved: Mapping[str, Any], plan: Resumption) -> None:
    """Give a trainer the state that a checkpoint holds of it; what changed keys decide stays as the recipe has it.

    Args:
        trainer: Just made from the recipe.
        saved: The trainer's state in the checkpoint.
        plan: What has changed.

    Raises:
        InputError: The state does not fit what has changed.
    """
    merger = dict(saved["merger"])
    if plan.touched("grpo.merge.kind"):
        merger["kind"] = trainer.merger.kind
    coefficients = _coefficients(trainer, saved["coefficients"], plan)
    advantages = saved["advantages"]
    if plan.touched("tasks.*.shaping.length*"):
        advantages = {task: {k: v for k, v in own.items() if k != "length"} for task, own in advantages.items()}
    try:
        trainer.load_state_dict({**saved, "coefficients": coefficients, "advantages": advantages, "merger": merger})
    except (LookupError, TypeError, ValueError) as error:
        if not plan.applied:
            raise
        raise InputError(
            f"{plan.checkpoint}: its state does not fit what has changed since: {_listed(plan.applied)} ({error!r}); "
            "put it back, or begin a new run with --out"
        ) from None


def _coefficients(trainer: GrpoTrainer, saved: Mapping[str, Any], plan: Resumption) -> dict[str, Any]:
    """The saved coefficients, and fresh ones where their keys have changed."""
    coefficients = dict(saved)
    for name, value in trainer.objective.coefficients.state_dict().items():
        patterns = ("grpo.entropy*",) if name == "entropy" else ("grpo.kl*", "tasks.*.kl", "tasks.*.kl_controller*")
        if name not in coefficients or plan.touched(*patterns):
            coefficients[name] = value
    return coefficients


def _refuse_impossible(folder: RunDir, plan: Resumption, state: State) -> None:
    reasons = [(change, reason) for change in plan.applied if (reason := _impossible(change, state))]
    if not reasons and state.stage == "grpo" and state.step and _lacks_reference(folder, plan):
        kl = [c for c in plan.applied if fnmatch(c.key, "grpo.kl*") or fnmatch(c.key, "tasks.*.kl*")]
        reasons = [(change, "the run has kept no reference to measure it from") for change in kl]
    if reasons:
        listed = "; ".join(f"{change}: {reason}" for change, reason in reasons[:MOST_SHOWN])
        raise InputError(
            f"{folder.path}: this cannot change on the way: {listed}. Put it back, or begin a new run with --out"
        )


def _impossible(change: Change, state: State) -> str | None:
    """Why a change cannot be accepted, or ``None``."""
    key, stage = change.key, state.stage
    for pattern, reason in _FIXED:
        if fnmatch(key, pattern) and not change.contents:
            return reason
    parts = key.split(".")
    if parts[0] == "tasks" and (len(parts) == 2 or parts[2:] in (["kind"], ["name"])):
        return _TASKS
    if parts[0] == "sft" and stage == "grpo":
        return "that stage is over"
    if key == "grpo" and stage == "grpo":
        return "the checkpoint is one of that stage"
    if key == f"{stage}.steps" and isinstance(change.after, int) and change.after < state.step:
        return f"{state.step} steps are done"
    if state.step and key == f"{stage}.optimizer.kind":
        return "a checkpoint holds the state of its own optimizer"
    if state.step and key == "grpo.curriculum.kind" and stage == "grpo":
        return _TASKS
    return None


def _lacks_reference(folder: RunDir, plan: Resumption) -> bool:
    """Whether the reinforcement stage needs a reference now, and began without one."""
    recipe = plan.recipe
    if recipe.grpo is None or not make_objective(recipe, recipe.grpo)[0].coefficients.needs_reference:
        return False
    if recipe.model.lora is None:
        return not (folder.path / "checkpoints" / "reference").is_dir()
    has_copy = plan.checkpoint is not None and (plan.checkpoint / "reference").is_dir()
    return recipe.sft is not None and not has_copy


def _covers(accept: Collection[str], key: str) -> bool:
    return any(name == ALL or key == name or key.startswith(f"{name}.") for name in accept)


def _not_accepted(folder: Path, changes: Sequence[Change]) -> str:
    keys = ",".join(change.key for change in changes) if len(changes) <= MOST_SHOWN else ALL
    (first, *more) = changes
    if not more and first.key in ("grpo.steps", "sft.steps") and _is_more(first):
        return (
            f"{folder}: {first.key} was {first.before} and is {first.after} now: "
            f"to go on for longer, add --accept-changes {keys}"
        )
    return (
        f"{folder}: the recipe is not the one that the run was begun with: {_listed(changes)}. "
        f"Accept with --accept-changes {keys}, or begin a new run with --out"
    )


def _is_more(change: Change) -> bool:
    if change.before is ABSENT or change.after is ABSENT:
        return False
    return int(change.after) > int(change.before)


def _listed(changes: Sequence[Change]) -> str:
    more = f" and {len(changes) - MOST_SHOWN} more" if len(changes) > MOST_SHOWN else ""
    return ", ".join(map(str, changes[:MOST_SHOWN])) + more
