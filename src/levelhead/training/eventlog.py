"""Where events go: each is a line of ``events.jsonl``, and what a person must know also stands on the terminal."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import LOUD, notice, printable
from levelhead.diagnosis.remedies import remedies, settings_text
from levelhead.errors import EngineError, RewardError
from levelhead.message import Message
from levelhead.records import Event
from levelhead.terminal import counted, say
from levelhead.terminal.console import SafeConsole
from levelhead.training.checkpoint_files import State
from levelhead.training.rundir import RunDir
from levelhead.training.sinks import ProgressSink

FILE = "events.jsonl"
ENGINE = "engine"
"""Code of the event that servers ended a run."""
REWARDS = "rewards"
"""Code of the event of a run that rewards ended: a reward function, a judge, an endpoint or its budget."""
FAILED = "failed"
"""Code of the event of a run that any other error ended."""
INTERRUPTED = "interrupted"
SAVED = Message(
    "interrupted and saved after step {step}; --resume goes on from there",
    "第 {step} 步之后被中断并已保存；用 --resume 可从那里继续",
)
BROKEN_OFF = Message(
    "interrupted in the middle of a step; --resume goes on from the newest checkpoint",
    "在一步中途被中断；用 --resume 可从最新的检查点继续",
)

_COLOURS = {"critical": "bold red", "warning": "yellow"}


class EventLog:
    """Writes the events of a run, and tells warnings and critical ones as they happen.

    A line goes to stderr, above the progress bar where there is one.  What repeats itself step after step is told the
    first four times and then ever more rarely (8th, 16th, 32nd time); a stop is always told.

    Args:
        folder: Folder of the run.
        loud: Whether this process speaks; of several, the first does.
        console: The terminal, shared with the progress bar; stderr unless given.
        recipe: The run's own as plain data, so that nothing is advised that it has already.
        language: Of what is told; the file is in English always.
    """

    def __init__(
        self,
        folder: RunDir,
        *,
        loud: bool = True,
        console: Console | None = None,
        recipe: Mapping[str, Any] | None = None,
        language: Language = "en",
    ) -> None:
        self.language: Language = language
        self.console = console or SafeConsole(stderr=True)
        self._folder, self._loud, self._recipe = folder, loud, recipe
        self._seen: Counter[tuple[str, str]] = Counter()
        self._newest: Event | None = None

    def write(self, events: Sequence[Event]) -> None:
        """Append events to the file, in order, and tell those that are worse than ``info``."""
        self._folder.append(FILE, events)
        for event in events:
            if event.severity in LOUD:
                self._tell(event)

    @property
    def spoken(self) -> dict[str, Language]:
        """The language as an argument for what speaks English unless told otherwise; empty for English."""
        return {} if self.language == "en" else {"language": self.language}

    def progress(self, stage: str, done: int, total: int, tasks: Sequence[str]) -> ProgressSink:
        """Return what shows a stage's progress on the same terminal, with the events so far."""
        return ProgressSink(
            stage,
            done,
            total,
            self.console,
            quiet=not self._loud,
            tasks=tasks,
            events=self.so_far,
            **self.spoken,
        )

    def scoring(self, items: int) -> None:
        """Say that held-out items are scored now, where no bar shows that anything moves."""
        if self._loud and not self.console.is_terminal:
            texts = {"en": f"scoring {items} held-out items per task ...", "zh": f"每个任务评测 {items} 道留出题……"}
            say(texts[self.language], error=True)

    def so_far(self) -> str:
        """Return in one line how many warnings and critical events there were, and the newest; empty for none."""
        if self._newest is None:
            return ""
        counts = [
            said(counted(count, f"{severity} event" if severity == "critical" else severity), self.language)
            for severity in LOUD
            if (count := sum(n for (level, _), n in self._seen.items() if level == severity))
        ]
        last = said(f"the last: {printable(self._newest.code, 60)} at step {self._newest.step}", self.language)
        comma, mark = (", ", "; ") if self.language == "en" else ("\u3001", "\uff1b")
        return f"{comma.join(counts)}{mark}{last}"

    @contextlib.contextmanager
    def ending(self, state: State) -> Iterator[None]:
        """Write which error ended the run, if one does.

        It stands behind the last checkpoint: a run that goes on forgets that it stopped.
        """
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):  # a full disk must not hide what went wrong
                self.write([_end(state, error)])
            raise

    def interrupted(self, state: State) -> None:
        """Write that the run was asked to stop, and did."""
        text = SAVED(step=state.step)
        self.write([Event(state.step, INTERRUPTED, "info", text, "stop", {"stage": state.stage})])

    def _tell(self, event: Event) -> None:
        self._seen[event.severity, event.code] += 1
        self._newest = event
        times = self._seen[event.severity, event.code]
        if not self._loud or (event.action != "stop" and times > 3 and times & (times - 1)):
            return
        to_do = ""
        if times == 1:
            to_do = self._remedy(event)
        line = Text(f"levelhead: {notice(event.to_json(), to_do, times, self.language)}")
        head = f"{event.severity}: {event.code}" if self.language == "en" else f"{said(event.severity)} {event.code}"
        line.highlight_words([head], _COLOURS[event.severity])
        self.console.print(line, soft_wrap=True)

    def _remedy(self, event: Event) -> str:
        """The first change that the catalogue advises, in the run's own numbers; empty where there is none."""
        others = {code for _, code in self._seen if code != event.code}
        arguments = event.evidence.get("arguments", ())
        changes = remedies(event.code, self._largest, beside=others, arguments=arguments, recipe=self._recipe)
        return settings_text(changes[0].settings) if changes else ""

    def _largest(self, name: str) -> float | None:
        """Largest reading of a metric in the run so far."""
        return max((row.values[name] for row in self._folder.steps("grpo") if name in row.values), default=None)


def _end(state: State, error: BaseException) -> Event:
    kind = type(error).__name__
    evidence = {"stage": state.stage, "error": kind}
    if isinstance(error, KeyboardInterrupt):
        return Event(state.step, INTERRUPTED, "info", BROKEN_OFF(), "stop", evidence)
    if isinstance(error, RewardError):
        return Event(state.step, REWARDS, "critical", str(error), "stop", {**evidence, "cause": error.cause})
    if isinstance(error, EngineError):
        return Event(state.step, ENGINE, "critical", str(error), "stop", {**evidence, "cause": error.cause})
    text = f"{kind}: {printable(error) or 'no message'}"
    return Event(state.step, FAILED, "critical", text, "stop", evidence)
