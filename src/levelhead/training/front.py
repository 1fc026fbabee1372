"""The front of a run: every evaluation adds a point, and the weights of the checkpoints on it are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.policy.policy import Policy
from levelhead.recipe import Recipe
from levelhead.recipe.training import Best
from levelhead.rollout.draws import generator
from levelhead.tasks.base import Task
from levelhead.tasks.constant import Estimate
from levelhead.training.checkpoint import FRONT, Checkpoints
from levelhead.training.checkpoint_files import State, read_state
from levelhead.training.evaluate import TaskResult
from levelhead.training.evaluator import selection
from levelhead.training.pareto import Point, bounded, describe, front_of, knee_of, volume_of
from levelhead.training.rundir import RunDir

FILE = "pareto.json"
"""Name of the document in the run's folder."""


class RunFront:
    """Adds the evaluations of a run to its front, and keeps the checkpoints on it.

    What a resumed run goes on from is in ``State.front``: objectives, reference, points, and the names of the
    checkpoints that are kept.  A checkpoint that leaves the front stays on disk until the next step checkpoint is
    whole, so that a run that is killed goes on with the front of the checkpoint before.
    """

    def __init__(self, recipe: Recipe, tasks: Mapping[str, Task], folder: RunDir, checkpoints: Checkpoints) -> None:
        self._recipe, self._tasks, self._folder, self._checkpoints = recipe, tasks, folder, checkpoints
        self._best = recipe.checkpoint.best
        self._limit = recipe.checkpoint.front

    def add(self, policy: Policy, state: State, results: Mapping[str, TaskResult], stage: str, step: int) -> None:
        """Add the point of an evaluation, and write the weights of now where they are to be kept.

        Args:
            policy: The policy that was evaluated.
            state: Of the run; its ``front`` is brought up to date.
            results: By task.
            stage: ``start``, ``sft`` or ``grpo``.
            step: Over the whole run.
        """
        estimates = objectives_of(results)
        if len(estimates) < 2:
            return
        front = state.front
        if list(front.get("objectives", ())) != list(estimates):
            reference = self._reference(estimates)
            front = {"objectives": list(estimates), "reference": reference, "points": [], "members": []}
        values = tuple(estimate.score for estimate in estimates.values())
        errors = tuple(estimate.se for estimate in estimates.values())
        front["points"] = [row for row in front["points"] if (row["stage"], row["step"]) != (stage, step)]
        seen = [point.values for point in _points(front)]
        volume = volume_of([*seen, values], _reference_of(front))
        front["points"].append(Point(step, stage, values, errors, volume).to_json())
        state.front = front
        if self._limit:
            front["members"] = self._members(front, step)
            if step_name(step) in front["members"]:
                self._checkpoints.save_front(policy, state)
        self._write(state)

    def choose_best(
        self, policy: Policy, state: State, results: Mapping[str, TaskResult], *, at_least: bool = False
    ) -> None:
        """Keep the policy as the run's best one where it is; of equal ones the first, or with ``at_least`` the last."""
        if isinstance(self._best, Best) and self._best.by == "knee":
            self._take_the_knee(state)
        elif self._best:
            score, before = selected_score(results, self._best), state.best
            if before is None or (score >= before if at_least else score > before):
                state.best = score
                self._checkpoints.save_best(policy, state)

    def prune(self, state: State) -> None:
        """Drop the checkpoints that are no longer on the front, and what a killed process left of one."""
        self._checkpoints.prune_front(set(state.front.get("members", ())))

    def resume(self, state: State) -> None:
        """Go on with the front of a checkpoint: later points, and the weights of later checkpoints, are forgotten."""
        there = self._checkpoints.front_names()
        if state.front:
            state.front["members"] = [name for name in state.front["members"] if name in there]
        self.prune(state)
        if state.front.get("points"):
            self._write(state)
        else:
            (self._folder.path / FILE).unlink(missing_ok=True)
        if isinstance(self._best, Best) and self._best.by == "knee":
            self._take_the_knee(state)

    def _take_the_knee(self, state: State) -> None:
        """Make the checkpoint at the knee the best one: of those on the front whose weights are kept."""
        points = [point for point in _points(state.front) if step_name(point.step) in state.front["members"]]
        if (knee := knee_of([point.values for point in points])) is not None:
            self._checkpoints.best_from_front(step_name(points[knee].step))

    def _write(self, state: State) -> None:
        front = state.front
        points = _points(front)
        members = {int(name.removeprefix("step-")): f"checkpoints/{FRONT}/{name}" for name in front["members"]}
        rng = generator(self._recipe.seed, "pareto", len(points))
        self._folder.write_json(FILE, describe(front["objectives"], _reference_of(front), points, rng, members))

    def _members(self, front: Mapping[str, Any], step: int) -> list[str]:
        """Names of the checkpoints to keep: on the front, with weights on disk or in memory, and not too many."""
        points = _points(front)
        have = {*front["members"], step_name(step)}
        on_front = [points[i] for i in front_of([point.values for point in points])]
        candidates = [point for point in on_front if step_name(point.step) in have]
        members = bounded([point.values for point in candidates], _reference_of(front), self._limit)
        return [step_name(candidates[i].step) for i in members]

    def _reference(self, estimates: Mapping[str, Estimate]) -> list[float]:
        """The recipe's reference, else a task's least reward, else the score of the first evaluation."""
        stated = self._recipe.eval.reference
        return [stated[name] if name in stated else self._least(name, one.score) for name, one in estimates.items()]

    def _least(self, name: str, first: float) -> float:
        task = self._tasks.get(name)
        declared = None if task is None else task.reward_range
        return first if declared is None else float(declared[0])


def front_document(
    recipe: Recipe, folders: Sequence[Path], results: Sequence[Mapping[str, TaskResult]]
) -> dict[str, Any]:
    """Return the document of the front of some checkpoints; its reference is the recipe's, else their worst scores.

    Raises:
        InputError: There are fewer than two objectives.
    """
    estimates = [objectives_of(result) for result in results]
    names = list(estimates[0])
    if len(names) < 2:
        raise InputError(
            "a front needs two objectives: two tasks in the recipe, or one whose reward has two named parts"
        )
    points = [
        Point(
            _step_of(folder),
            read_state(folder).stage,
            tuple(own[name].score for name in names),
            tuple(own[name].se for name in names),
        )
        for folder, own in zip(folders, estimates, strict=True)
    ]
    worst = {name: min(own[name].score for own in estimates) for name in names}
    reference = [recipe.eval.reference.get(name, worst[name]) for name in names]
    places = {point.step: str(folder) for point, folder in zip(points, folders, strict=True)}
    return describe(names, reference, points, generator(recipe.seed, "pareto", len(points)), places)


def _step_of(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def step_name(step: int) -> str:
    """Return the name of the checkpoint of a step of the whole run."""
    return f"step-{step:06d}"


def objectives_of(results: Mapping[str, TaskResult]) -> dict[str, Estimate]:
    """Return what a run is pulled between: its tasks' balanced scores, or the named reward parts of its one task.

    Both over the items that all evaluations of a run share.  A single task counts the parts that every one of its
    answers has; with fewer than two of them there is nothing to weigh against anything.
    """
    if len(results) != 1:
        return {name: Estimate(result.selection, result.selection_se) for name, result in results.items()}
    (result,) = results.values()
    scores = [group.rollouts[0].score for group in list(result.groups)[: result.common]]
    parts = [score.parts for score in scores if score is not None]
    names = [name for name in (parts[0] if parts else {}) if all(name in row for row in parts)]
    return {name: Estimate.of([row[name] for row in parts]) for name in names}


def selected_score(results: Mapping[str, TaskResult], best: Best | bool) -> float:
    """Return what checkpoints are compared by: the mean of the tasks' balanced scores, one, or a weighted mean."""
    scores = {name: result.selection for name, result in results.items()}
    if isinstance(best, Best) and best.by == "task" and best.task is not None:
        return scores[best.task]
    if isinstance(best, Best) and best.by == "weights":
        return sum(weight * scores[name] for name, weight in best.weights.items()) / sum(best.weights.values())
    return selection(results)


def _points(front: Mapping[str, Any]) -> list[Point]:
    """The points of a front's record."""
    return [Point.from_json(row) for row in front.get("points", ())]


def _reference_of(front: Mapping[str, Any]) -> list[float]:
    return [float(value) for value in front["reference"]]
