"""One run: evaluate, fine-tune, evaluate, reinforce, evaluate; stoppable anywhere, resumable to the bit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from levelhead.errors import EngineError, InputError, RewardError
from levelhead.message import Message
from levelhead.policy.load import fingerprint
from levelhead.policy.rounding import coarsest
from levelhead.recipe import plain
from levelhead.recipe.history import History
from levelhead.recipe.training import Grpo, Sft
from levelhead.records import Event, Observer
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Remote
from levelhead.rollout.generators.make import make_generator
from levelhead.training.checkpoint_files import State, read_training
from levelhead.training.collect import Collector
from levelhead.training.curriculum import make_stream
from levelhead.training.diagnostics import note_first_steps, save_sample
from levelhead.training.digest import compare, next_digest
from levelhead.training.evaluate import TaskResult
from levelhead.training.evaluator import Evaluator, summary
from levelhead.training.eventlog import EventLog
from levelhead.training.fidelity import saved_events
from levelhead.training.fit import pair_events
from levelhead.training.front import RunFront
from levelhead.training.group_queue import GroupQueue
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.items import HeldOutItems
from levelhead.training.loop import EventLoop, Interrupts, WaitInterruptedError
from levelhead.training.optim import NONFINITE, Updater
from levelhead.training.prepare import Setup, environment, make_objective
from levelhead.training.ranks import Ranks, waiting_for_peers
from levelhead.training.resume import Resumption, load_trainer
from levelhead.training.rundir import RunDir
from levelhead.training.sft import SftTrainer
from levelhead.training.sharding.setup import make_checkpoints, servers, shared_setup
from levelhead.training.sharding.shards import with_shards
from levelhead.training.sinks import ProgressSink
from levelhead.training.step_result import StepResult, Trainer
from levelhead.training.stream import Stream
from levelhead.training.trackers import Trackers
from levelhead.training.watch import BatchWatch

Outcome = Literal["done", "interrupted", "stopped"]
Stage = Literal["sft", "grpo"]
MAX_LOST = 5
"""Steps in a row without a finite gradient after which the run stops."""
LOST = Message(
    "{steps} steps in a row had no finite gradient; the run was stopped", "连续 {steps} 步的梯度不是有限值；训练已停止"
)


class Run:
    """A run while it is trained.

    Args:
        setup: Recipe, tasks and policy; with a checkpoint to go on from, the policy of that.
        folder: Where it is written.
        resumption: How an interrupted run of ``folder`` goes on; a new run begins unless given.
        observers: Shown every record of the reinforcement stage.
        earlier: Events of before the run began.
        trackers: Sent every number, and samples of rollouts; closed at the end.
    """

    def __init__(
        self,
        setup: Setup,
        folder: RunDir,
        *,
        resumption: Resumption | None = None,
        observers: Sequence[Observer] = (),
        earlier: Sequence[Event] = (),
        trackers: Trackers | None = None,
    ) -> None:
        self.ranks = Ranks.joined(setup.recipe.distributed.timeout_s)
        self.setup = setup = shared_setup(setup, self.ranks)
        self._trackers = trackers or Trackers({})
        self.folder, self.observers, self.recipe, self.policy = folder, observers, setup.recipe, setup.policy
        stages: dict[Stage, Sft | Grpo | None] = {"sft": self.recipe.sft, "grpo": self.recipe.grpo}
        self.stages = {stage: section for stage, section in stages.items() if section is not None}
        self.offset = {"sft": 0, "grpo": self.recipe.sft.steps if self.recipe.sft else 0}
        self.checkpoints = make_checkpoints(folder, self.recipe, self.offset, self.ranks)
        self.front = RunFront(self.recipe, setup.tasks, folder, self.checkpoints)
        self.state = State(next(iter(self.stages), "sft"), 0, fingerprint=fingerprint(self.policy))
        self.events = EventLog(folder, loud=not self.ranks.rank, recipe=plain(self.recipe))
        self.loop = EventLoop()
        self.policy.version = 0
        self.generator = make_generator(self.policy.samples_from, self.loop.waiter, servers(self.recipe, self.ranks))
        self.collector = Collector(setup.tasks, self.policy.codec, self.generator, self.loop, self.ranks)
        self.evaluator = Evaluator(setup, self.collector, self.loop, folder)
        self.queue: GroupQueue | None = None
        self.trainer: Trainer | None = None
        self._trainer_state: dict[str, Any] = {}
        self.held_out = HeldOutItems(setup.tasks)
        self.watch = BatchWatch()
        self._earlier = list(earlier)
        self._plan = resumption or Resumption(self.recipe, History(folder.path))
        self._resumed = self._resume() if resumption is not None else None
        self.evaluator.load_state_dict(self.state.baselines)
        self._interrupts = Interrupts(self.loop, waits=not self.ranks.alone)
        self._began = time.perf_counter()

    def execute(self) -> Outcome:
        """Run to the end, to an interrupt, or to an observer's stop.

        Raises:
            InputError: No space is left for a checkpoint; what was saved before is whole.
            RewardError: A reward function misbehaved.
            EngineError: The servers that sample cannot be used, or do not hold the policy.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.enter_context(self._interrupts.noted())
            stack.enter_context(self.events.ending(self.state))
            stack.enter_context(waiting_for_peers(self.recipe.distributed.timeout_s, self.ranks.count))
            if self._resumed is None:
                self._begun()
                compute = str(self.policy.compute_dtype).removeprefix("torch.")
                self.folder.write_json("environment.json", {**environment(), "compute_dtype": compute})
                self._evaluate("start", 0)
            try:
                outcome = self._stages()
            except WaitInterruptedError:
                if not self.state.step:
                    raise
                outcome = "interrupted"  # and saved as it was after its last step
            if outcome == "interrupted":
                self.events.interrupted(self.state)
            return outcome

    def _stages(self) -> Outcome:
        for stage, config in self.stages.items():
            if self._behind(stage):
                continue
            outcome = self._stage(stage, config)
            if outcome != "done":
                return outcome
            if self.ranks.any(self._interrupts.came) and stage != list(self.stages)[-1]:
                return "interrupted"
        return "done"

    def _behind(self, stage: Stage) -> bool:
        """Whether a stage was completed before the run was resumed."""
        order: list[str] = list(self.stages)
        return order.index(stage) < order.index(self.state.stage) or (stage == self.state.stage and self.state.done)

    def _stage(self, stage: Stage, config: Sft | Grpo) -> Outcome:
        """Do the steps of a stage, from where the run stands."""
        trainer = self._sft(config) if isinstance(config, Sft) else self._grpo(config)
        progress = self.events.progress(stage, self.state.step, config.steps, list(self.setup.tasks))
        with contextlib.closing(progress) as bar, self._saving_on_failure(stage, trainer):
            if self.state.unevaluated:
                self._evaluate_on_the_way(config)
            while self.state.step < config.steps:
                result = trainer.step(self.state.step + 1)
                self._record(result, bar)
                self._trainer_state, self.state.stream = trainer.state_dict(), trainer.position.state_dict()
                lost = self._gradient_is_lost(result.events)
                self._evaluate_on_the_way(config)
                if result.stop or lost:
                    if stage == "grpo":
                        self._evaluate(stage, self.state.step)
                    self.events.write(result.ends)
                    self._save(stage, trainer)
                    return "stopped"
                if self._pause(stage, config.steps, trainer):
                    return "interrupted"
            return self._finish(stage, trainer)

    def _sft(self, config: Sft) -> SftTrainer:
        stream, updater = self._begin("sft", config)
        seed = derive(self.recipe.seed, "sft")
        trainer = SftTrainer(
            self.policy, self.setup.tasks, stream, updater, config, seed, self.loop, self.ranks, self.watch
        )
        self._ready(trainer)
        return trainer

    def _grpo(self, config: Grpo) -> GrpoTrainer:
        objective, estimator = make_objective(self.recipe, config, self.setup.tasks)
        stream, updater = self._begin("grpo", config)
        resumed = self._resumed is not None and self.state.step > 0
        if objective.coefficients.needs_reference:
            self.checkpoints.begin_reference(self.policy, resumed=resumed, trained=self.recipe.sft is not None)
        trainer = GrpoTrainer(
            self.policy,
            self.collector,
            stream,
            objective,
            updater,
            config,
            derive(self.recipe.seed, "grpo"),
            self.observers,
            estimator,
            self.ranks,
            self.watch,
        )
        if self._resumed is not None and resumed:
            load_trainer(trainer, self._resumed["trainer"], self._plan)
            trainer.watch.recall(self.folder.steps("grpo"))
        self._ready(trainer)
        self.queue, self._trainer_state = trainer.queue, trainer.state_dict()
        return trainer

    @contextlib.contextmanager
    def _saving_on_failure(self, stage: Stage, trainer: Trainer) -> Iterator[None]:
        """Save the last whole step where rewards cannot go on (a budget used up, a silent endpoint, an interrupt)."""
        try:
            yield
        except (EngineError, RewardError, WaitInterruptedError) as error:
            if self.queue is not None:
                self.queue.close()
            self.events.write(self.collector.events(self.state.step + 1))
            if self.state.step:
                trainer.position.load_state_dict(self.state.stream)
                trainer.load_state_dict(self._trainer_state)  # as the step that broke off had found it
                self._save(stage, trainer)
                error.add_note(f"saved after step {self.state.step}; continue with --resume --out {self.folder.path}")
            raise

    def _begun(self) -> None:
        """Write the recipe, once it is known to fit, and what is to be told of how the run began."""
        self._plan.record(self.folder)
        self.state.recipe = self._plan.history.newest or self.state.recipe
        self.events.write([*(replace(event, step=self.state.step) for event in self._earlier)])
        self._earlier.clear()
        self.events.write(self._plan.events(self.state.step))

    def _begin(self, stage: Stage, config: Sft | Grpo) -> tuple[Stream, Updater]:
        """Stream and optimizer of a stage, fresh or as the checkpoint left them."""
        tasks = list(self.setup.tasks.values())
        weights = [self.setup.weights[task.name] for task in tasks]
        curriculum = config.curriculum if isinstance(config, Grpo) else None
        stream = make_stream(tasks, weights, derive(self.recipe.seed, "stream", stage), curriculum)
        updates = config.updates_per_batch * config.epochs if isinstance(config, Grpo) else 1
        updater = Updater(self.policy.parameters, config.optimizer, config.steps * updates, self.policy.matrices)
        updater.rounds_to = coarsest(self.policy)
        if self._resumed is not None and self.state.stage == stage:
            stream.load_state_dict(self.state.stream)
            updater.load(self._resumed)
        elif self.state.stage != stage or self.state.done:
            self.state.stage, self.state.step, self.state.done = stage, 0, False
        self.watch = BatchWatch.of(config, self.setup.tasks, self.held_out)
        if self._resumed is not None and self.state.stage == stage and self.state.step:
            # Checkpoints of before there were watchers hold the items of their epoch under another name.
            watched = self._resumed.get("watch") or {"reported": [], "items": self._resumed.get("identities")}
            self.watch.load_state_dict(watched, forget_items=self._plan.touched("tasks*"))
        return stream, updater

    def _ready(self, trainer: Trainer) -> None:
        """Begin, or go on, with a stage: compare what its next step begins with against what was to be expected."""
        self.trainer = trainer
        self._begun()
        if self._resumed is not None and self.state.step and (now := self._digest()):
            self.events.write(compare(self.state.digest, now, self._plan.touched, self.state.step))

    def _digest(self) -> dict[str, str]:
        """Hashes of what the next step of a stage begins with; a finished run may be given more steps."""
        if self.trainer is None:
            return {}
        return next_digest(self.policy, self.trainer, self.state.step + 1)

    def _record(self, result: StepResult, bar: ProgressSink) -> None:
        """Write a step down: its numbers, what happened, and a sample of its rollouts."""
        record, offset = result.record, self.offset[result.record.stage]
        self.folder.append("metrics.jsonl", [record])
        self._trackers.write(record, offset)
        happened = (self.queue or self.collector).events(record.step)
        self.events.write(self.ranks.united([*result.news, *happened, *self._trackers.drain_events()]))
        bar.write(record)
        self.state.step = record.step
        if self.recipe.grpo is not None and result.groups:
            self._trackers.rollouts(save_sample(self.folder, self.recipe.log, result, self.setup.tasks), offset)
            note_first_steps(self.folder, self.policy, result.groups, record.step, self.recipe.grpo)

    def _gradient_is_lost(self, events: Sequence[Event]) -> bool:
        """Whether to stop a run whose gradient is lost for good, rather than burn the rest of its time."""
        self.state.lost = self.state.lost + 1 if any(event.code == NONFINITE for event in events) else 0
        if self.state.lost < MAX_LOST:
            return False
        self.events.write([Event(self.state.step, NONFINITE, "critical", LOST(steps=MAX_LOST), "stop")])
        return True

    def _evaluate_on_the_way(self, config: Sft | Grpo) -> None:
        every, step = self.recipe.eval.every, self.state.step
        if isinstance(config, Sft) or not every or step % every or step == config.steps:
            return
        self.state.unevaluated = True
        results = self._score(self.recipe.eval.items)
        self.state.unevaluated = False
        self.evaluator.write(results, step, None, self._trackers, 0)
        self.events.write(self.evaluator.events(results, step))
        self.front.add(self.policy, self.state, results, "grpo", self.offset["grpo"] + step)
        self.front.choose_best(self.policy, self.state, results)

    def _evaluate(self, stage: str, step: int) -> None:
        """Score the policy before the first stage or at the end of one, for the summary; it may be the best one."""
        results = self._score(self.recipe.eval.final_items)
        order = ["start", *self.stages]
        if stage == order[-1]:
            results = self.evaluator.with_shortcuts(results)
        self.evaluator.write(results, step, stage, self._trackers, self.offset.get(stage, 0))
        before_grpo = [*order, ""][order.index(stage) + 1] == "grpo"
        self.events.write([*self.collector.events(step), *self.evaluator.events(results, step, before_grpo)])
        for name, result in results.items():
            self.state.summary.setdefault(name, {})[stage] = result.to_json()
        groups = [group for result in results.values() for group in list(result.groups)[: self.recipe.log.rollouts]]
        rows = self.folder.save_rollouts(f"eval-{stage}", stage, step, groups, self.setup.tasks)
        self._trackers.rollouts([{**row, "stage": "eval"} for row in rows], self.offset.get(stage, 0))
        self.front.add(self.policy, self.state, results, stage, self.offset.get(stage, 0) + step)
        self.front.choose_best(self.policy, self.state, results, at_least=True)
        seconds, best = self.state.seconds + time.perf_counter() - self._began, self.checkpoints.best_origin()
        self.folder.write_json("summary.json", summary(self.state.summary, list(self.stages), seconds, best))

    def _score(self, items: int) -> dict[str, TaskResult]:
        if self.queue is not None:
            self.queue.settle()
        self.policy.sync_sampler()
        self.events.scoring(items)
        results = self.evaluator.score(items)
        if isinstance(self.generator, Remote):
            self.loop.run(self.generator.rest())
        self.held_out.hold(group.prompt for result in results.values() for group in result.groups)
        return results

    def _pause(self, stage: Stage, steps: int, trainer: Trainer) -> bool:
        """Save where it is due; returns whether the run has been asked to stop here."""
        every = self.recipe.checkpoint.every
        last, stopping = self.state.step == steps, self.ranks.any(self._interrupts.came)
        if not last and ((every and self.state.step % every == 0) or stopping):
            self._save(stage, trainer)
        return stopping and not last

    def _finish(self, stage: Stage, trainer: Trainer) -> Outcome:
        if self.observers:
            self.policy.model.eval()
        self._evaluate(stage, self.state.step)
        self.state.done = True
        if stage == "sft" and "grpo" in self.stages:
            self.events.write(pair_events(self.setup, self.state.step))
        self._save(stage, trainer)
        return "done"

    def _save(self, stage: Stage, trainer: Trainer) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self._began
        self._began = now
        self.state.stage = stage
        self.state.stream = trainer.position.state_dict()
        self.state.sizes, self.state.last_row = self.folder.sizes(), self.folder.last_row()
        self.state.baselines = self.evaluator.state_dict()
        self.state.digest = self._digest()
        training = trainer.updater.state_dict() | {"watch": self.watch.state_dict()}
        training |= {"trainer": self._trainer_state} if self._trainer_state else {}
        path = self.checkpoints.save(self.policy, self.state, training)
        self.events.write(saved_events(self.state.step, path.name, self.checkpoints.differing))
        self.front.prune(self.state)

    def _resume(self) -> dict[str, Any] | None:
        """Take up the checkpoint's state; ``None`` where there is none and the run starts over."""
        checkpoint, state = self._plan.checkpoint, self._plan.state
        if checkpoint is None or state is None:
            self._plan.set_aside(self.checkpoints)
            self.folder.rewind({})
            self.front.resume(self.state)
            return None
        if state.fingerprint != self.state.fingerprint:
            raise InputError(f"{checkpoint}: a checkpoint of another model; resume with the recipe that began the run")
        self.folder.check(checkpoint, state.sizes, state.last_row)
        training = with_shards(read_training(checkpoint, self.policy.device), checkpoint, self.policy)
        self._plan.set_aside(self.checkpoints)
        self.checkpoints.prune()
        self.state = state
        section = self.stages.get(state.stage)  # type: ignore[call-overload]
        if state.done and section is not None and state.step < section.steps:
            state.done = False  # it was the end, and there are more steps now
        self.folder.rewind(state.sizes)
        self.checkpoints.find_best(self.policy, state)
        self.front.resume(state)
        return training

    def _close(self) -> None:
        if self.queue is not None:
            self.queue.close()
        self.loop.run(self.generator.close())
        self._trackers.close()
        for task in self.setup.tasks.values():
            self.loop.run(task.close())
        self.loop.close()
