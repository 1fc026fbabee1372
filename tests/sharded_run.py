"""Runs of several processes for tests, and what each of the processes does.

Importing takes a process longer than a small run: one process imports, and those of the runs are forked from it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import small_run
from levelhead.recipe.model import Model
from small_run import metrics

IMPORTED = (
    *("levelhead.api", "levelhead.training.run", "levelhead.preflight", "levelhead.doctor.report", "levelhead.guard"),
    *("levelhead.report.page", "levelhead.tasks.function.task", "levelhead.rollout.generators.vllm.generator", "peft"),
)
"""What a run imports on its way."""
STEPS = 6
BROKEN_AT, BACK_AT, KILLED_AT = 2, 3, 3
GRPO = {
    "grpo__steps": STEPS,
    "grpo__batch_size": 9,
    "grpo__updates_per_batch": 1,
    "grpo__optimizer__eps": 1e-3,
    "grpo__audit": {"first": 2, "every": 4},
    "grpo__tokens_per_microbatch": 384,
    "eval": {"items": 1, "final_items": 1, "sampling": {"max_new_tokens": 2}, "constant": False},
    "guard__max_kl": 0.02,
    "checkpoint__every": STEPS // 2,
}
"""Three groups an update for two processes, audits, and a guard that shortens some updates."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def assert_clipped(run: Path, most: float) -> None:
    """Every gradient of the run was longer than it may be, and had groups to come from."""
    rows = [row for row in metrics(run) if row["stage"] == "grpo"]
    assert min(row["grad_norm"] for row in rows) > most
    assert max(row["dead_groups/all_solved"] + row["dead_groups/all_failed"] for row in rows) < 1


def assert_same_numbers(one: Path, two: Path) -> None:
    """Every number that one process logs is the same to 2e-3 where two made the run, and on both of them."""
    rows, together, other = metrics(one), metrics(two), metrics(two.with_name(f"{two.name}.rank-1"))
    assert len(rows) == len(together) == len(other)
    for row, both, second in zip(rows, together, other, strict=True):
        assert row.keys() == both.keys() == second.keys()
        numbers = {name for name, value in row.items() if isinstance(value, float)}
        assert {n: both[n] for n in numbers} == pytest.approx(
            {n: row[n] for n in numbers}, rel=2e-3, abs=2e-5, nan_ok=True
        )
        assert repr(both) == repr(second)


class Launcher:
    """Does what ``torchrun`` does, but forks: the same deed in each process, and their ranks in the environment."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "sharded_run"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env={**os.environ, **environment()}, **pipes)

    def run(self, deed: str, folder: Path, count: int) -> list[int]:
        """Let some processes do a deed; returns how each ended.  Their errors go to ``DEED-RANK.err``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([deed, str(folder), count, free_port()]) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def serve() -> None:
    """Fork the processes that lines of stdin ask for, and answer each with the exit codes of its processes."""
    for name in IMPORTED:  # for all processes at once
        importlib.import_module(name)

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        deed, folder, count, port = json.loads(line)
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        pids = [fork(deed, Path(folder), shared, rank) for rank in range(count)]
        hangs = [pids.pop()] if deed == "reshard" else []
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        for pid in hangs:
            os.kill(pid, signal.SIGKILL)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        answers.write(json.dumps(codes) + "\n")


def fork(deed: str, folder: Path, shared: Mapping[str, str], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        errors = os.open(folder / f"{deed}-{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        os.environ.update({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        DEEDS[deed](folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def environment() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}


def recipes(folder: Path) -> dict[str, dict[str, Any]]:
    """The recipes of the runs that two processes make, by name."""

    def config(**changes: Any) -> dict[str, Any]:
        content = small_run.recipe(folder, **{"model__tiny__layers": 1, **changes})
        return {**content, "distributed": {"shard": "full", "timeout_s": 60}}

    lora = {"model__lora": {"r": 4, "alpha": 8}}
    return {
        # Later epochs, log-probabilities recomputed beforehand, a second model for the reference.
        "full": config(
            **GRPO,
            sft=None,
            grpo__merge__kind="cagrad",
            grpo__epochs=2,
            grpo__loss__importance="token_truncate",
        ),
        "lora": config(**GRPO, **lora, grpo__merge__kind="upgrad", grpo__optimizer__max_grad_norm=0.3),
        # One group of one of the tasks, so that a process has none of it; see :func:`disturbed`.
        "disturbed": config(
            sft=None, grpo__batch_size=9, grpo__updates_per_batch=1, grpo__steps=4, grpo__merge__kind="cagrad"
        ),
        "killed": config(sft=None, grpo__steps=4, checkpoint__keep_last=4),
    }


def shape() -> Model:
    """The model of the run ``full``."""
    return Model(preset="tiny", tiny={**small_run.TINY, "layers": 1}, dtype="float32")


@contextlib.contextmanager
def disturbed(*, alone: bool) -> Iterator[list[Any]]:
    """Passes of one process give NaN in one step, and an observer wants the weights back after a later one.

    Yields:
        The observers of the run.
    """
    from levelhead.guard import make_guard
    from levelhead.policy.policy import Policy, TokenStats
    from levelhead.recipe.guard import Guard
    from levelhead.records import Decision, Event, StepRecord
    from levelhead.training.grpo import GrpoTrainer

    score, step, now = Policy.score, GrpoTrainer.step, [0]
    broken = alone or os.environ["RANK"] == "1"

    def scored(self: Any, *args: Any, **options: Any) -> Any:
        stats = score(self, *args, **options)
        hurt = broken and now[0] == BROKEN_AT and stats.logp.requires_grad
        return TokenStats(stats.logp * torch.nan, stats.entropy) if hurt else stats

    def stepped(self: Any, number: int) -> Any:
        now[0] = number
        return step(self, number)

    guard = make_guard(Guard(policy="protect", max_kl=0.05))
    assert guard is not None
    watch = guard.after_update

    def after(record: StepRecord) -> Any:
        back = Event(record.step, "went-back", "warning", "the weights are wanted back")
        return [*watch(record), *([Decision("rollback", back)] if record.step == BACK_AT else [])]

    guard.after_update = after  # type: ignore[method-assign]
    Policy.score, GrpoTrainer.step = scored, stepped  # type: ignore[method-assign]
    try:
        yield [guard]
    finally:
        Policy.score, GrpoTrainer.step = score, step  # type: ignore[method-assign]


def cases(folder: Path) -> None:
    """Make all runs; the last one is killed in its third step, on the second process."""
    from levelhead import train
    from levelhead.training.grpo import GrpoTrainer

    configs, rank = recipes(folder), os.environ["RANK"]
    for name in ("full", "lora"):
        train(configs[name], out=folder / name)
    with disturbed(alone=False) as observers:
        train(configs["disturbed"], out=folder / "disturbed", observers=observers)
    step = GrpoTrainer.step

    def killed(self: Any, number: int) -> Any:
        if number == KILLED_AT and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, number)

    GrpoTrainer.step = killed  # type: ignore[method-assign]
    train(configs["killed"], out=folder / "killed")


def reshard(folder: Path) -> None:
    """Read what one process has saved, gather it whole, and write it; then the last process hangs."""
    from levelhead.errors import PeerError
    from levelhead.policy.load import load_checkpoint
    from levelhead.policy.sharding import full, shard_policy
    from levelhead.training.ranks import Ranks, waiting_for_peers
    from levelhead.training.sharding.shards import with_shards

    timeout = 3.0
    ranks = Ranks.joined(timeout)
    whole = load_checkpoint(shape(), folder / "full" / "checkpoints" / f"step-{STEPS:06d}")
    for parameter in whole.parameters:
        torch.nn.init.constant_(parameter, 0.25)
    policy = shard_policy(whole, samples=False)
    saved = torch.load(folder / "one" / "training.pt", weights_only=True)
    state = with_shards(saved, folder / "one", policy)
    gathered = {
        "model": {name: full(p.detach()) for name, p in policy.model.named_parameters()},
        "optimizer": {i: {k: full(v) for k, v in s.items()} for i, s in state["optimizer"]["state"].items()},
    }
    if not ranks.rank:
        torch.save(gathered, folder / "gathered.pt")
    ranks.gathered(None)
    if ranks.rank == ranks.count - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        with waiting_for_peers(timeout, ranks.count):
            ranks.gathered(None)
    except PeerError as error:
        (folder / f"hung-{ranks.rank}.txt").write_text(str(error), encoding="utf-8")
        os._exit(3)


def ahead_recipes(folder: Path) -> dict[str, dict[str, Any]]:
    """The recipes of runs that draw two steps ahead, by name."""
    shared = {
        "model__tiny__layers": 1,
        "sft": None,
        "eval": {"items": 1, "final_items": 1, "sampling": {"max_new_tokens": 2}, "constant": False},
        "grpo__async": 2,
        "grpo__steps": 5,
        "grpo__batch_size": 9,  # three groups for two processes
        "grpo__updates_per_batch": 1,
        "grpo__dynamic_sampling": 1,
        "grpo__optimizer__eps": 1e-3,
        "grpo__loss": {"importance": "token_truncate", "importance_high": 1.1},
        "checkpoint__every": 0,
    }
    plain = small_run.recipe(folder, **shared)
    return {"ahead": plain, "ahead-full": {**plain, "distributed": {"shard": "full", "timeout_s": 60}}}


def ahead(folder: Path) -> None:
    """Make runs that draw two steps ahead: undisturbed, then interrupted on one process after a step, and resumed."""
    from importance_by_hand import computed
    from levelhead import train
    from levelhead.records import StepRecord
    from levelhead.training.group_queue import GroupQueue

    rank, handed = os.environ["RANK"], list[list[str]]()
    draw = GroupQueue.next

    def watched(self: GroupQueue, *args: Any) -> Any:
        result = draw(self, *args)
        handed.append([f"{group.prompt.task}/{group.prompt.id}" for group in result.groups])
        return result

    GroupQueue.next = watched  # type: ignore[method-assign]

    class Interrupts:
        def before_update(self, record: StepRecord) -> Any:
            return []

        def after_update(self, record: StepRecord) -> Any:
            if record.step == 2 and rank == "1":
                signal.raise_signal(signal.SIGINT)
            return []

    told: dict[str, Any] = {}
    for name, config in ahead_recipes(folder).items():
        handed.clear()
        with computed("token_truncate", 0.0, 1.1) if name == "ahead" else contextlib.nullcontext([]) as pairs:
            outcomes = [train(config, out=folder / name).outcome]
        told.setdefault("weights", pairs)
        undisturbed = [*handed]
        handed.clear()
        again = folder / f"{name}-again"
        outcomes.append(train(config, out=again, observers=[Interrupts()]).outcome)
        outcomes.append(train(config, out=again, resume=True).outcome)
        told[name] = {"outcomes": outcomes, "undisturbed": undisturbed, "resumed": [*handed]}
    (folder / f"told-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def trains(folder: Path) -> None:
    """Make the runs that ``runs.json`` lists; notes what each process loaded, and engines that fail."""
    from levelhead import train
    from levelhead.errors import EngineError
    from levelhead.training.sharding import setup

    rank, loading = os.environ["RANK"], setup.loading
    loads: list[str] = []

    def noted(*args: Any, **options: Any) -> Any:
        load = loading(*args, **options)
        loads.append(load)
        (folder / f"held-{rank}.json").write_text(json.dumps(load), encoding="utf-8")
        (folder / f"loads-{rank}.json").write_text(json.dumps(loads), encoding="utf-8")
        return load

    setup.loading = noted
    for name, content, start in json.loads((folder / "runs.json").read_text(encoding="utf-8")):
        resumed = {} if start is None else {"resume": True, "resume_from": start or None}
        loads.clear()
        try:
            train(content, out=folder / name, **resumed)
        except EngineError as error:
            (folder / f"{name}-{rank}.txt").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


DEEDS: Mapping[str, Callable[[Path], None]] = {
    "cases": cases,
    "reshard": reshard,
    "ahead": ahead,
    "trains": trains,
}

if __name__ == "__main__":
    serve()
