"""The same without YAML: ``from levelhead import Recipe, train``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelhead.diagnosis.findings import Language, language_named
from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.recipe import Recipe, load, plain, validate
from levelhead.startup import uncollected
from levelhead.tasks.presence import require_files
from levelhead.training.rundir import default_folder, refuse_used, unused_folder
from levelhead.training.trackers import Trackers, check_trackers, make_trackers

if TYPE_CHECKING:
    from levelhead.preflight import Report
    from levelhead.preflight.progress import Printer
    from levelhead.records import Observer
    from levelhead.tasks.base import Task
    from levelhead.training.evaluate import TaskResult
    from levelhead.training.prepare import Setup
    from levelhead.training.ranks import Ranks
    from levelhead.training.run import Run
    from levelhead.training.rundir import RunDir

REPORT_FAILED = "report-failed"
"""Code of the event of a run whose page could not be written."""
NO_REPORT = Message(
    "report.html could not be written ({error}); try levelhead report",
    "无法写出 report.html（{error}）；请运行 levelhead report",
)


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """What a run came to.

    Attributes:
        outcome: ``done``, ``interrupted`` or ``stopped``.
        folder: Where it is.
        summary: As in ``summary.json``: held-out results by task, stage and stratum, and each task's verdict.
        model: The trained model.
        tokenizer: Its tokenizer.
    """

    outcome: str
    folder: Path
    summary: Mapping[str, Any]
    model: Any
    tokenizer: Any

    def __repr__(self) -> str:
        verdicts = [f"; {name}: {v['text']}" for name, v in self.summary.get("verdict", {}).items()]
        return f"Result({self.outcome}, {self.folder}{''.join(verdicts)})"

    def _repr_html_(self) -> str:
        from levelhead.report.cell import cell

        return cell(self.outcome, self.folder, self.summary)


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    resume_from: str | None = None,
    accept_changes: Collection[str] = (),
    data: Iterable[Mapping[str, Any]] | None = None,
    eval_data: Iterable[Mapping[str, Any]] | None = None,
    rewards: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    model: Any = None,
    tokenizer: Any = None,
    observers: Sequence[Observer] = (),
    check: bool | None = None,
    tasks: Sequence[Task] = (),
    language: Language = "en",
) -> Result:
    """Train as a recipe says.

    Args:
        recipe: A recipe, its keys as a mapping, or the path of a YAML file.
        out: Folder of the run, which must hold none; unless given ``runs/NAME``, or ``runs/NAME-2`` where that has one.
        resume: Go on where an interrupted run of that folder stopped.
        resume_from: Go on from this checkpoint (``step-000100``) or from the beginning (``start``) instead of the
            newest one; checkpoints that are newer are renamed.
        accept_changes: Keys of the recipe that may differ from the run's own when it goes on, or ``all``.
        data: Rows for the recipe's ``function`` task, instead of its ``path``.
        eval_data: Rows that are held out for evaluation; a share of the data unless given.
        rewards: Reward functions for the ``function`` task, instead of its ``rewards``.
        tools: Functions that its policy may call, instead of those that its ``tools`` names.
        model: A model that is already loaded, instead of the recipe's; the recipe's adapter is put on it.
        tokenizer: Its tokenizer.
        observers: Shown every record of the reinforcement stage.
        check: Run the preflight first; as the recipe says unless given.  A run that goes on is not checked again.
        tasks: Tasks of your own, each in place of the recipe's task of its name, or added to the recipe.
        language: Of the terminal and of ``report.html``: ``en`` or ``zh``.  The run's other files are in English.

    Raises:
        InputError: The recipe, its data or its folder do not fit, or the folder is in use; nothing has been written.
        PreflightError: A check failed; nothing has been written but ``check.json``.
        RewardError: A reward function misbehaved.
    """
    recipe = resolve(recipe, tasks)
    _check_arguments(model, tokenizer, resume=resume, about_resuming=resume_from is not None or bool(accept_changes))
    path = _folder(recipe, out, resume=resume)
    require_files(recipe, model=model is None and not resume)
    check_trackers(recipe)
    with uncollected():
        from levelhead.training.checkpoint_files import offering_the_last_whole
        from levelhead.training.ranks import Ranks, waiting_for_peers

    inputs = _Inputs(model, tokenizer, (data, rewards, eval_data, tools), tasks, observers, language_named(language))
    with contextlib.ExitStack() as held, offering_the_last_whole():
        ranks = Ranks.joined(recipe.distributed.timeout_s)
        held.enter_context(waiting_for_peers(recipe.distributed.timeout_s, ranks.count))
        if out is None and not resume:
            path = ranks.gathered(unused_folder(path) if not ranks.rank else path)[0]
        return _train(recipe, path, ranks, held, inputs, resume, resume_from, accept_changes, check)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a caller of :func:`train` hands over, most of it in place of what the recipe names."""

    model: Any
    tokenizer: Any
    function: tuple[Any, Any, Any, Any]
    """Data, rewards, held-out data and tools of the ``function`` task."""
    tasks: Sequence[Task]
    observers: Sequence[Observer]
    language: Language


def _train(
    recipe: Recipe,
    path: Path,
    ranks: Ranks,
    held: contextlib.ExitStack,
    inputs: _Inputs,
    resume: bool,
    resume_from: str | None,
    accept: Collection[str],
    check: bool | None,
) -> Result:
    """Prepare, check and run in a folder that is locked until ``held`` is left; see :func:`train`."""
    with uncollected():
        from levelhead.records import Spectator
        from levelhead.training.ranks import lock_run
        from levelhead.training.resume import plan_resumption
        from levelhead.training.run import Run
        from levelhead.training.rundir import RunDir
        from levelhead.training.sharding.setup import cache_events, check_same

    locked = lock_run(ranks, path, held) if resume else None
    folder = RunDir(ranks.folder(path, resume=resume))
    if not resume:
        ranks.in_all(lambda: refuse_used(folder.path))
    plan = plan_resumption(folder, recipe, start=resume_from, accept=accept) if resume else None
    checkpoint = plan.checkpoint if plan is not None else None
    check_same(ranks, checkpoint)
    setup = _prepared(recipe, folder, ranks, inputs, checkpoint, check)
    locked = lock_run(ranks, path, held) if locked is None else locked
    trackers = Trackers({}) if ranks.rank else make_trackers(recipe, path)
    held.callback(trackers.close)
    folder.claim(resume=resume)
    earlier = [*locked, *cache_events(recipe), *setup.events()]
    observers = guarded(recipe, inputs.observers)
    run = Run(setup, folder, resumption=plan, observers=observers, earlier=earlier, trackers=trackers)
    run.events.language = inputs.language
    for spectator in (one for one in inputs.observers if isinstance(one, Spectator)):
        spectator.began(run.policy, folder.path, setup.recipe.grpo.steps if setup.recipe.grpo else 0)
    del setup  # whole weights that the run no longer needs
    try:
        outcome = run.execute()
    finally:
        _write_report(run)
    trained = run.policy.samples_from  # whole, where weights are divided and the run has drawn by itself
    return Result(outcome, folder.path, folder.read_json("summary.json") or {}, trained.model, trained.codec.tokenizer)


def _prepared(
    recipe: Recipe, folder: RunDir, ranks: Ranks, inputs: _Inputs, checkpoint: Path | None, check: bool | None
) -> Setup:
    """Load tasks and policy, whole or divided, and check them before a new run."""
    with uncollected():
        from levelhead.policy.load import wrap
        from levelhead.tasks.registry import function_tasks
        from levelhead.training.prepare import prepare, reloaded, seed_everything
        from levelhead.training.sharding.setup import divided, loading

    policy = None
    if inputs.model is not None and checkpoint is None:
        policy = wrap(inputs.model, inputs.tokenizer, recipe.model, recipe.seed)
    share = divided(recipe, ranks)
    checks = checkpoint is None and (recipe.check if check is None else check)
    load = loading(recipe, ranks, checks=checks) if policy is None else "whole"
    ready = function_tasks(share, *inputs.function) | {task.name: task for task in inputs.tasks}
    seed_everything(recipe.seed)
    with uncollected():
        setup = ranks.in_all(
            lambda: prepare(recipe, checkpoint=checkpoint, tasks=ready, policy=policy, load=load, share=share)
        )
    if checks:
        _preflight(setup, folder, ranks, inputs.language)
        if policy is None and load != (later := loading(recipe, ranks, checks=False)):
            setup = reloaded(setup, later)
    return setup


def _folder(recipe: Recipe, out: str | Path | None, *, resume: bool) -> Path:
    """The folder that is asked for, or the recipe's own, which may be taken still.

    Raises:
        InputError: There is no such run to go on with, or a run is there already.
    """
    path = Path(out) if out is not None else default_folder(recipe)
    if resume and not path.is_dir():
        raise InputError(f"{path}: no such folder, so there is no run to go on with; leave out --resume to begin one")
    if out is not None and not resume:
        refuse_used(path)
    return path


def _check_arguments(model: Any, tokenizer: Any, *, resume: bool, about_resuming: bool) -> None:
    """Refuse arguments of :func:`train` that do not go together."""
    if (model is None) != (tokenizer is None):
        raise InputError("train(): give model and tokenizer together")
    if not resume and about_resuming:
        raise InputError("train(): resume_from and accept_changes (--from, --accept-changes) are for --resume")


def _write_report(run: Run) -> None:
    """Write the run's page; a run that has its weights is not failed by a page that cannot be written."""
    from levelhead.records import Event
    from levelhead.report import write

    if run.ranks.rank:  # the others' folders hold the same run
        return
    try:
        write(run.folder.path, **run.events.spoken)
    except Exception as error:
        message = NO_REPORT(error=f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            run.events.write([Event(run.state.step, REPORT_FAILED, "warning", message)])


def guarded(recipe: Recipe, observers: Sequence[Observer]) -> list[Observer]:
    """Return the observers with the recipe's guard behind them, unless one of them is a guard already."""
    from levelhead.guard import make_guard
    from levelhead.records import Guard

    guard = None if any(isinstance(observer, Guard) for observer in observers) else make_guard(recipe.guard)
    return [*observers, *([guard] if guard else [])]


def check(
    recipe: Recipe | Mapping[str, Any] | str | Path, *, tasks: Sequence[Task] = (), printer: Printer | None = None
) -> Report:
    """Make every preflight check on a recipe's real model, tokenizer and tasks; trains nothing, writes nothing.

    Args:
        recipe: As :func:`train` takes it.
        tasks: Tasks of your own, as there.
        printer: Prints outcomes as they are made; nothing is printed unless given.

    Raises:
        InputError: The recipe or its data do not fit.
    """
    recipe = resolve(recipe, tasks)
    require_files(recipe)
    with uncollected():
        from levelhead.preflight import preflight
        from levelhead.training.prepare import prepare, seed_everything

        seed_everything(recipe.seed)
        setup = prepare(recipe, tasks={task.name: task for task in tasks})
    if printer is None:
        return preflight(setup)
    with printer:
        report = preflight(setup, tell=printer.tell, progress=printer.progress, on_need=printer.begin)
    printer.finish(report)
    return report


def _preflight(setup: Setup, folder: RunDir, ranks: Ranks, language: Language) -> None:
    """Check before the first step: outcomes go to stderr, a failure ends it, everything is in ``check.json``."""
    from levelhead.preflight import PreflightError, preflight
    from levelhead.preflight.progress import Printer

    with Printer(language=language, error=True) as printer:
        report = preflight(setup, ranks=ranks, tell=printer.tell, progress=printer.progress, on_need=printer.begin)
    if not ranks.rank:
        printer.finish(report)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_json("check.json", report.to_json())
    if report.failures:
        raise PreflightError(report, str(folder.path / "check.json"), language)


def evaluate(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    checkpoint: str | Path,
    *,
    items: int | None = None,
    sampled: bool = True,
    as_run: bool = False,
    tasks: Sequence[Task] = (),
) -> dict[str, dict[str, TaskResult]]:
    """Score a checkpoint on held-out items, greedy and (by the training controls) sampled.

    Args:
        recipe: As :func:`train` takes it.
        checkpoint: Its folder.
        items: Held-out items a task; as the recipe says unless given.
        sampled: Whether to score sampled answers as well.
        as_run: Score by ``eval.sampling`` alone instead, as the evaluations of a run do.
        tasks: Tasks of your own, as for :func:`train`.

    Returns:
        ``{"greedy" | "sampled" | "run": {task: result}}``.
    """
    recipe = resolve(recipe, tasks)
    require_files(recipe, checkpoint, model=False)
    from levelhead.rollout.generators.make import make_generator
    from levelhead.training.checkpoint_files import baselines_of_run
    from levelhead.training.collect import Collector
    from levelhead.training.evaluate import Baselines
    from levelhead.training.evaluate import evaluate as score
    from levelhead.training.evaluator import at_the_end
    from levelhead.training.loop import EventLoop
    from levelhead.training.prepare import prepare

    setup = prepare(recipe, checkpoint=Path(checkpoint), tasks={task.name: task for task in tasks})
    loop = EventLoop()
    generator = make_generator(setup.policy, loop.waiter, recipe.generator)
    collector = Collector(setup.tasks, setup.policy.codec, generator, loop)
    collector.at_step(*at_the_end(setup.recipe))
    section = recipe.eval
    baselines = Baselines(setup.tasks, collector, loop, recipe.seed) if section.constant else None
    if baselines is not None:
        baselines.as_in(baselines_of_run(Path(checkpoint)))
    ways = {"greedy": section.model_copy(update={"sampling": section.sampling.model_copy(update={"temperature": 0.0})})}
    if as_run:
        ways = {"run": section}
    elif sampled:
        warm = recipe.grpo.sampling.temperature if recipe.grpo else 1.0
        warm_sampling = section.sampling.model_copy(update={"temperature": warm or 1.0})
        ways["sampled"] = section.model_copy(update={"sampling": warm_sampling})
    try:
        return {
            way: score(setup.tasks, collector, config, recipe.seed, items or section.final_items, baselines)
            for way, config in ways.items()
        }
    finally:
        loop.run(generator.close())
        loop.close()


def resolve(recipe: Recipe | Mapping[str, Any] | str | Path, tasks: Sequence[Task] = ()) -> Recipe:
    """Return a validated recipe, with a section of kind ``custom`` for each of some tasks that it does not name.

    Raises:
        InputError: The recipe does not fit, or one of the tasks is none, or has the name of another.
    """
    if tasks:
        data = recipe if isinstance(recipe, Mapping) else plain(resolve(recipe))
        return validate({**data, "tasks": _sections(data.get("tasks"), tasks)})
    if isinstance(recipe, Recipe):
        return recipe
    return validate(recipe) if isinstance(recipe, Mapping) else load(recipe)


def _sections(given: Any, tasks: Sequence[Task]) -> Any:
    """Return a recipe's sections of tasks, and those of further tasks behind them."""
    from levelhead.tasks.registry import check_task

    for task in tasks:
        check_task(task, f"tasks=[{type(task).__name__}]")
    names = [task.name for task in tasks]
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise InputError(f"tasks=[...]: two tasks are called {twice[0]!r}; give one of them another name")
    sections = [] if given is None else given
    if not isinstance(sections, list):
        return sections
    there = {section.get("name") or section.get("kind") for section in sections if isinstance(section, Mapping)}
    return [*sections, *({"kind": "custom", "name": name} for name in names if name not in there)]
