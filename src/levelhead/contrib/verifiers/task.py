"""Training on an environment of ``verifiers``: its rows, its turns, its tools, and the rewards that it gives."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from levelhead.contrib.verifiers.endpoint import Endpoint, Question
from levelhead.contrib.verifiers.loading import load
from levelhead.diagnosis.notice import printable
from levelhead.errors import InputError
from levelhead.metrics import held_out
from levelhead.recipe.environments import Verifiers
from levelhead.records import LARGEST_REWARD, ChatMessage, Event, Prompt, Rollout, Score
from levelhead.tasks.base import EpisodeLostError, Split, Step, Task
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group
from levelhead.tasks.tool_formats import CallError
from levelhead.tasks.tool_reader import CallReader, call_id, typed

_OPENED: ChatMessage = {"role": "user", "content": "The environment speaks first when the episode starts."}


class VerifiersTask(Task):
    """The rows of an environment; an episode is one run of its own loop, in which the policy answers for the model.

    A score's ``parts`` hold the environment's rewards, unweighted, and its ``info`` the metrics and how it ended.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The environment cannot be loaded, or needs what is not there.
    """

    def __init__(self, section: Verifiers) -> None:
        self.name = section.title
        self.section = section
        self.env, self.rows, schemas = load(section)
        self.tools: CallReader = CallReader(calls=64, schemas=schemas)
        keys = list(range(len(self.rows)))
        sides = split_by_group(keys, lambda row: self.rows[row].key, section.eval_fraction)
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, str)
        self.lost: list[str] = []
        self._server: _Server | None = None

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's rows once, in an order that depends on the seed alone."""
        for row in in_seed_order(self._sides[split], seed, self.name, split):
            data = self.rows[row].data
            messages: list[ChatMessage] = (
                [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
            )
            if isinstance(data.prompt, str):
                messages.append({"role": "user", "content": data.prompt})
            else:
                messages += [message_to_wire(message) for message in data.prompt or ()] or [_OPENED]
            options = self.tools.chat(Prompt("", "", ()).chat)
            yield Prompt(str(row), self.name, tuple(messages), facts={"row": row}, chat=options)

    def oracle(self, prompt: Prompt) -> list[str] | None:  # noqa: ARG002
        """Return ``None``: an environment shows nobody a perfect answer."""
        return None

    def episode(self, prompt: Prompt) -> VerifiersEpisode:
        """Start an attempt at a row."""
        return VerifiersEpisode(self, prompt)

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the mean of every reward, as ``rewards/<name>``."""
        columns: dict[str, list[float]] = defaultdict(list)
        for _, rollout in results:
            for name, value in rollout.parts.items():
                columns[name].append(value)
        return {held_out.MEAN_PART.of(name): fmean(column) for name, column in columns.items()}

    def drain_events(self, step: int) -> list[Event]:
        """Return which episodes broke since the last call, dated ``step``."""
        lost, self.lost = self.lost, []
        return [Event(step, "environment-lost", "warning", message) for message in lost]

    @property
    def concurrency(self) -> int:
        """Most episodes that can be live at once."""
        return self.section.sessions

    async def serving(self) -> _Server:
        """Return what episodes run on, started at first use."""
        if self._server is None or not self._server.runs_here:
            self._server = _Server(self.env)
        await self._server.ready
        return self._server

    async def close(self) -> None:
        """Stop the endpoint and what the environment shares between episodes."""
        server, self._server = self._server, None
        if server is not None and server.runs_here:
            await server.close()


class _Server:
    """What all episodes on an event loop share: our endpoint, and the environment's own servers, held by one task."""

    def __init__(self, env: vf.Env) -> None:
        self._loop = asyncio.get_running_loop()
        self.endpoint = Endpoint()
        self.ready: asyncio.Future[str] = self._loop.create_future()
        self._over = asyncio.Event()
        self._task = self._loop.create_task(self._hold(env))

    @property
    def runs_here(self) -> bool:
        """Whether it can be used from the running event loop."""
        return self._loop is asyncio.get_running_loop() and not self._task.done()

    async def _hold(self, env: vf.Env) -> None:
        try:
            url = await self.endpoint.start()
            async with env.serving():
                self.ready.set_result(url)
                await self._over.wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(InputError(f"tasks[].env cannot be served: {printable(error)}"))
        finally:
            await self.endpoint.close()

    async def close(self) -> None:
        self._over.set()
        await self._task


class VerifiersEpisode:
    """One run of the environment, which waits wherever it asks its model."""

    def __init__(self, task: VerifiersTask, prompt: Prompt) -> None:
        self.completion_ids: tuple[int, ...] = ()
        self._task, self._prompt = task, prompt
        self._server: _Server | None = None
        self._name = ""
        self._inbox: asyncio.Queue[Question] = asyncio.Queue()
        self._run: asyncio.Task[vf.Episode] | None = None
        self._question: Question | None = None
        self._ids = itertools.count()

    async def observe(self) -> list[ChatMessage]:
        """Return the conversation that the environment wants continued.

        Raises:
            EpisodeLostError: The environment broke.
            InputError: It shows pictures, or its servers do not start.
        """
        if self._run is None:
            self._server = await self._task.serving()
            self._name, self._inbox = self._server.endpoint.open()
            client = vf.EvalClientConfig(base_url=await self._server.ready, api_key_var="LEVELHEAD_NO_KEY")
            row = self._task.rows[self._prompt.facts["row"]]
            play = self._task.env.run_episode(row, vf.ModelContext(model=self._name, client=client))
            self._run = asyncio.ensure_future(play)
            self._question = await self._next()
        if self._question is None:
            raise self._broken("it ended before its model had answered")
        if self._question.pictures:
            raise InputError(f"tasks[].env: {self._task.section.env} shows pictures, which this policy cannot see")
        tools = self._task.tools
        return [
            {**message, "content": tools.plain(message["content"])} if message["role"] == "tool" else message
            for message in self._question.messages
        ]

    async def act(self, text: str) -> Step:
        """Let the environment go on with what the policy wrote; a call that cannot be read is text.

        Raises:
            EpisodeLostError: The environment broke.
        """
        if self._question is None:
            raise RuntimeError("observe comes before act")
        tools = self._task.tools
        try:
            before, calls = tools.read(text)
        except CallError:
            before, calls = text, []
        read = [replace(call, arguments=typed(call, tools.schemas.get(call.name, {})), texts=False) for call in calls]
        numbered = [(call_id(next(self._ids)), call) for call in read]
        self._question.answer(before.strip() if calls else text, numbered, ended=tools.ended(self.completion_ids))
        self._question = await self._next()
        if self._question is not None and tools.has_room(self._question.messages, self._prompt.chat):
            return Step(done=False)
        while self._question is not None:
            self._question.refuse()
            self._question = await self._next()
        return Step(done=True, score=self._score())

    async def close(self) -> None:
        """Cancel the environment's run, if it goes on."""
        if self._server is not None:
            self._server.endpoint.shut(self._name)
        if self._run is not None and not self._run.done():
            self._run.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._run

    async def _next(self) -> Question | None:
        """Wait until the environment asks again; ``None`` where it is through."""
        assert self._run is not None  # noqa: S101 - both callers have started it
        asked = asyncio.ensure_future(self._inbox.get())
        done, _ = await asyncio.wait(
            {asked, self._run}, timeout=self._task.section.timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if asked in done:
            return asked.result()
        asked.cancel()
        if not done:
            raise self._broken(f"it took longer than {self._task.section.timeout_s:g} s")
        return None

    def _broken(self, why: str) -> EpisodeLostError:
        """Report that the environment broke, in its own words where it has any."""
        if self._run is not None and self._run.done() and not self._run.cancelled():
            errors = self._run.result().errors + [e for trace in self._run.result().traces for e in trace.errors]
            why = f"{errors[-1].type}: {errors[-1].message}" if errors else why
        message = f"{self._task.section.env}, row {self._prompt.id}: {printable(why, 300)}"
        self._task.lost.append(message)
        return EpisodeLostError(message)

    def _score(self) -> Score:
        assert self._run is not None  # noqa: S101 - act has waited for it
        episode = self._run.result()
        (trace,) = episode.traces or (None,)
        if trace is None or not episode.ok:
            raise self._broken("it ended without a score")
        if not abs(trace.reward) <= LARGEST_REWARD:
            raise self._broken(f"its reward is {trace.reward}")
        parts = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        info = {"row": self._prompt.facts["row"], "turns": trace.num_turns, "ended": trace.stop_condition, **metrics}
        return Score(float(trace.reward), parts, valid=bool(trace.last_reply), info=info)
