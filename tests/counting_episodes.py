"""An environment whose episodes count their turns, and a generator that notes who is drawn together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from levelhead.records import ChatMessage, Prompt, Score, Turn
from levelhead.rollout.generators.base import Completion, Request
from levelhead.tasks.base import EpisodeLostError, Step, Task

PROMPTS = [Prompt(name, "count", ({"role": "user", "content": name},)) for name in ("a", "b", "c")]


class Plain:
    """Text is its own characters."""

    def render(self, messages: Sequence[ChatMessage], *_: object) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1]["content"]))

    def decode(self, ids: Sequence[int], *_: object) -> str:
        return "".join(map(chr, ids))


class Recorder:
    """Answers with the name under which a turn is drawn, and keeps who was drawn together."""

    version = 7

    def __init__(self) -> None:
        self.together: list[list[str]] = []
        self.asking = 0
        self.waiting: list[tuple[Request, asyncio.Future[None]]] = []

    async def generate(self, request: Request) -> Completion:
        assert request.index == 0
        self.waiting.append((request, asyncio.get_running_loop().create_future()))
        turn = self.waiting[-1][1]
        self.answer()
        await turn
        prompt = request.prompt
        zeros = (0.0,) * len(prompt.id)
        return Completion(Turn(prompt.token_ids, tuple(map(ord, prompt.id)), zeros, zeros, "stop"), (7, 7))

    def answer(self) -> None:
        if self.waiting and len(self.waiting) == self.asking:
            batch, self.waiting = self.waiting, []
            self.together.append([request.prompt.id for request, _ in sorted(batch, key=lambda pair: pair[0].place)])
            for _, turn in batch:
                turn.set_result(None)

    def expect(self, count: int) -> None:
        self.asking = count

    def leave(self) -> None:
        self.asking -= 1
        self.answer()

    async def sync_weights(self) -> None:
        self.synced = True

    async def close(self) -> None:
        return None


class Counting(Task):
    """Two turns an episode; breaks as often as it is told to."""

    name = "count"

    def __init__(self, concurrency: int = 4, breaks: dict[str, int] | None = None) -> None:
        self.rooms, self.breaks = concurrency, breaks or {}
        self.open: Counter[str] = Counter()
        self.most = 0

    @property
    def concurrency(self) -> int:
        return self.rooms

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        return iter(PROMPTS)

    def oracle(self, prompt: Prompt) -> None:
        return None

    def summarize(self, results: object) -> dict[str, float]:
        return {}

    def episode(self, prompt: Prompt) -> Episode:
        self.open[prompt.id] += 1
        self.most = max(self.most, self.open.total())
        return Episode(self, prompt.id)


class Episode:
    def __init__(self, task: Counting, name: str) -> None:
        self.task, self.name, self.said, self.closed = task, name, [], False

    async def observe(self) -> list[ChatMessage]:
        return [{"role": "user", "content": f"{self.name}{len(self.said)}"}]

    async def act(self, text: str) -> Step:
        self.said.append(text)
        if len(self.said) == 2 and self.task.breaks.get(self.name, 0) > 0:
            self.task.breaks[self.name] -= 1
            raise EpisodeLostError("broken")
        return Step(len(self.said) == 2, Score(1.0) if len(self.said) == 2 else None)

    async def close(self) -> None:
        self.task.open[self.name] -= not self.closed
        self.closed = True
