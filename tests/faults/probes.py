"""Runs so small that every fault and every sound setting can have one: one task, two, or episodes of some turns."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from faults.probe import ROWS as ECHO
from faults.probe import TEXT, closeness
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.doctor.report import examine
from levelhead.errors import InputError
from levelhead.guard import LiveGuard
from levelhead.preflight import preflight
from levelhead.recipe import Recipe
from levelhead.recipe.guard import Guard
from levelhead.recipe.load import parse
from levelhead.records import ChatMessage, Decision, Prompt, Rollout, Score, StepRecord
from levelhead.tasks.base import Split, Step, Task
from levelhead.tasks.function import FunctionTask
from levelhead.training.prepare import Setup, prepare, seed_everything
from levelhead.training.resume import plan_resumption
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir

ANOTHER = "  - {kind: function, name: count, oracle: answer, eval_fraction: 0.1}\nsft:"
HALF_WAY = 10
"""Step of the reinforcement stage after which a run that is to be resumed is interrupted."""
COUNT = tuple({"prompt": f"Say after {n % 7} what comes, number {n}.", "answer": f"{n % 7 + 1}."} for n in range(40))


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def exact(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer."""
    return [float(text_of(c) == a) for c, a in zip(completions, answer, strict=True)]


def gappy(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """As :func:`closeness`; no number for every fifth wrong answer, by its text."""
    values = closeness(completions, answer)
    texts = [text_of(c) for c in completions]
    return [math.nan if v < 1 and sum(map(ord, t)) % 5 == 0 else v for v, t in zip(values, texts, strict=True)]


def brevity(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer; for others up to a third, less for each character, and nothing for saying nothing."""
    pairs = [(text_of(c), a) for c, a in zip(completions, answer, strict=True)]
    return [1.0 if text == right else (0 < len(text) < 40) * (1 - len(text) / 40) / 3 for text, right in pairs]


REWARDS: Mapping[str, Any] = {
    "closeness": closeness,
    "exact": exact,
    "gappy": gappy,
    "two": [closeness, brevity],
}


class Saying(Task):
    """Say a number, then say it again until it was right or three turns are over."""

    name = "echo"

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        rows = ECHO[:36] if split == "train" else ECHO[36:]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed % 2**31)).tolist()
        for i in order:
            row = rows[i]
            message = {"role": "user", "content": row["prompt"]}
            yield Prompt(row["prompt"], self.name, (message,), facts={"answer": row["answer"]})

    def oracle(self, prompt: Prompt) -> list[str] | None:
        return [prompt.facts["answer"]] * 2

    def episode(self, prompt: Prompt) -> Spoken:
        return Spoken(prompt)

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[ChatMessage], str]]:
        episode, shown = Spoken(prompt), []
        for answer in self.oracle(prompt) or ():
            shown.append((await episode.observe(), answer))
            await episode.act(answer)
        return shown

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        return {}


class Spoken:
    """One episode: the mean over its turns of how close each answer was."""

    def __init__(self, prompt: Prompt) -> None:
        self._messages: list[ChatMessage] = list(prompt.messages)
        self._right = prompt.facts["answer"]
        self._scores: list[float] = []

    async def observe(self) -> list[ChatMessage]:
        return list(self._messages)

    async def act(self, text: str) -> Step:
        self._scores.append(closeness([text], [self._right])[0])
        over = len(self._scores) == 3 or (len(self._scores) == 2 and self._scores[-1] > 0.9)
        again = {"role": "user", "content": "Once more."}
        self._messages += [{"role": "assistant", "content": text}, again]
        return Step(over, Score(sum(self._scores) / len(self._scores)) if over else None)

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Probe:
    """A run to be made.

    Attributes:
        kind: ``single``, ``dual`` or ``episodes``.
        settings: Changes of its recipe.
        reward: Name of its reward function.
        resumes: Whether it is interrupted half-way and goes on.
    """

    kind: str = "single"
    settings: tuple[str, ...] = ()
    reward: str = "closeness"
    resumes: bool = False

    @property
    def key(self) -> str:
        """What tells it from others."""
        told = json.dumps([self.kind, self.settings, self.reward, self.resumes])
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def recipe(self) -> Recipe:
        text = TEXT.replace("sft:", ANOTHER, 1) if self.kind == "dual" else TEXT
        return parse(text, self.settings, source="probe")

    def setup(self, checkpoint: Path | None = None) -> Setup:
        """Everything that a run of it works on."""
        recipe = self.recipe()
        seed_everything(recipe.seed)
        return prepare(recipe, checkpoint=checkpoint, tasks=self._tasks(recipe))

    def _tasks(self, recipe: Recipe) -> dict[str, Task]:
        if self.kind == "episodes":
            return {"echo": Saying()}
        rewards = REWARDS[self.reward]
        rows = {"echo": ECHO, "count": COUNT}
        return {
            str(section.name): FunctionTask(section, data=[dict(r) for r in rows[str(section.name)]], rewards=rewards)  # type: ignore[arg-type]
            for section in recipe.tasks
        }


class Interrupter:
    """Interrupts the run once, as a person at the keyboard would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def before_update(self, record: StepRecord) -> Sequence[Decision]:
        return ()

    def after_update(self, record: StepRecord) -> Sequence[Decision]:
        if record.stage == "grpo" and record.step == self._step:
            os.kill(os.getpid(), signal.SIGINT)
        return ()


def watch(probe: Probe, folder: Path) -> dict[str, Any]:
    """Check a probe, train it with the guard looking on, and have the doctor read what is left; plain data."""
    said: dict[str, Any] = {"check": _checked(probe)}
    with contextlib.redirect_stderr(io.StringIO()):
        said |= trained(probe, folder)
    said["events"] = _events(folder)
    said["doctor"] = _doctor(folder)
    return said


def _checked(probe: Probe) -> list[dict[str, str]]:
    """What the preflight fails on or warns of."""
    try:
        report = preflight(probe.setup())
    except Exception as error:
        return [{"name": "recipe", "status": "fail", "text": _first_line(error)}]
    return [
        {"name": c.name, "status": c.status, "text": f"{c.message} {c.fix}".strip()}
        for c in report.checks
        if c.status != "pass"
    ]


def trained(probe: Probe, folder: Path) -> dict[str, Any]:
    """Train, and go on where the probe is to be interrupted; returns what ended the run before its time."""
    setup, stopped = None, None
    try:
        setup = probe.setup()
        run = RunDir(folder)
        run.claim(resume=False)
        more = [Interrupter(HALF_WAY)] if probe.resumes else []
        outcome = Run(setup, run, observers=[LiveGuard(Guard(policy="observe")), *more]).execute()
        if probe.resumes:
            if outcome != "interrupted":
                raise RuntimeError(f"the run was to be interrupted and is {outcome}")
            run = RunDir(folder)
            plan = plan_resumption(run, probe.recipe())
            setup = probe.setup(plan.checkpoint)
            run.claim(resume=True)
            guard = LiveGuard(Guard(policy="observe"))
            outcome = Run(setup, run, resumption=plan, observers=[guard]).execute()
        if outcome != "done":
            stopped = outcome
    except Exception as error:  # whatever ends a run ends it
        stopped = f"{type(error).__name__}: {_first_line(error)}"
    if setup is not None:
        folder.mkdir(parents=True, exist_ok=True)
        state = setup.policy.model.state_dict()
        torch.save({name: value.float() for name, value in state.items()}, folder / "weights.pt")
    return {"stopped": stopped}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


def _events(folder: Path) -> list[dict[str, Any]]:
    """Warnings and critical events of the run."""
    path = folder / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    events = [json.loads(line) for line in lines]
    return [
        {"code": e["code"], "step": e["step"], "severity": e["severity"], "text": e["message"]}
        for e in events
        if e["severity"] != "info"
    ]


def _doctor(folder: Path) -> dict[str, Any] | None:
    """The doctor's leading finding, if it calls the run unhealthy."""
    try:
        diagnosis = examine(folder).diagnosis
    except InputError:
        return None
    finding = diagnosis.findings[0]
    if not diagnosis.faulty:
        return None
    entry = CATALOGUE[finding.code]
    return {
        "code": finding.code,
        "step": finding.first_step,
        "text": f"{entry.title.get('en')}. {entry.meaning.get('en')}",
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def rows(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Numbers of a run by stage and step, without what differs between two runs of one seed."""
    by_step: dict[tuple[str, int], dict[str, float]] = {}
    path = folder / "metrics.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        row = json.loads(line)
        numbers = {
            k: float(v)
            for k, v in row.items()
            if isinstance(v, int | float) and k not in ("step", "step_time") and "time/" not in k
        }
        by_step[str(row["stage"]), int(row["step"])] = numbers
    return by_step


def difference(folder: Path, sound: Path) -> dict[str, Any]:
    """How far a run is from the sound run of the same settings: its weights, and the metrics that differ."""
    mine, theirs = (torch.load(f / "weights.pt", weights_only=True) for f in (folder, sound))
    same = [name for name in theirs if name in mine and mine[name].shape == theirs[name].shape]
    gap = math.sqrt(sum(float((mine[n] - theirs[n]).square().sum()) for n in same))
    size = math.sqrt(sum(float(theirs[n].square().sum()) for n in same))
    ours, others = rows(folder), rows(sound)
    apart = {
        key
        for at in others.keys() & ours.keys()
        for key, value in others[at].items()
        if key in ours[at] and not math.isclose(value, ours[at][key], rel_tol=1e-3, abs_tol=1e-6)
    }
    return {"weights": gap / size, "metrics": len(apart), "best": _best(folder) != _best(sound)}


def _best(folder: Path) -> list[str]:
    """What the weights of a run's best checkpoint are told apart by."""
    return [_hash(path) for path in sorted((folder / "checkpoints" / "best").glob("*.safetensors"))]
