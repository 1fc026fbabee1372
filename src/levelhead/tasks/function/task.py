"""The ``function`` task: the user's data, the user's rewards."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from levelhead.errors import InputError, RewardError, first_line
from levelhead.metrics import held_out
from levelhead.recipe.tasks import Function
from levelhead.recipe.tools import ToolUse
from levelhead.records import LARGEST_REWARD, Prompt, Rollout, Score
from levelhead.tasks.base import Answer, Episode, ShownTurn, SingleTurnTask, Split
from levelhead.tasks.function.examples import make_examples
from levelhead.tasks.function.loading import RewardFunction, load_rewards
from levelhead.tasks.function.rewards import Rated, RatingError, TrainerState, not_rated, rate
from levelhead.tasks.function.sources import load_table
from levelhead.tasks.function.stateful_tools import StatefulToolbox, start, toolbox
from levelhead.tasks.main_thread import no_running_loop
from levelhead.tasks.metering import RewardTally, open_account
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group
from levelhead.tasks.tools import Toolbox
from levelhead.waiting import all_of


class FunctionTask(SingleTurnTask):
    """Prompts from the user's data, scored by the user's reward functions with TRL's signature."""

    def __init__(
        self,
        section: Function,
        *,
        data: Iterable[Mapping[str, Any]] | None = None,
        eval_data: Iterable[Mapping[str, Any]] | None = None,
        rewards: Sequence[str | RewardFunction] | RewardFunction | None = None,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> None:
        """Load data and reward functions, and check that they fit.

        Args:
            section: The recipe's section.
            data: Rows in memory, in place of ``section.path``: a list of dicts, a ``datasets.Dataset``, any iterable.
                One without a length is read up to ``section.limit`` rows.
            eval_data: Rows that are held out, in place of a share of the data.
            rewards: Callables (or ``file.py:name``) in place of ``section.rewards``.
            tools: Callables in place of ``section.tools.functions``.

        Raises:
            InputError: The data or the reward functions are missing, malformed, or do not fit each other.
        """
        if rewards is not None and section.rewards:
            raise InputError("rewards come from tasks[].rewards and from Python (rewards=); give one of them")
        if isinstance(rewards, Set | Mapping | str):
            raise InputError(f"rewards= must be a function or a list of functions, not a {type(rewards).__name__}")
        entries = section.rewards if rewards is None else [rewards] if callable(rewards) else list(rewards)
        self.name = section.title
        self.tools: Toolbox | None = toolbox(section.tools, tools) if isinstance(section.tools, ToolUse) else None
        self._progress = _Progress()
        table = load_table(section, data, eval_data)
        examples = make_examples(table, section)
        columns = [*examples[0].columns, *(["environments"] if isinstance(self.tools, StatefulToolbox) else [])]
        self.rewards = load_rewards(entries, section.reward_weights, columns, table.source)
        self._range, self._weights = section.reward_range, section.reward_weights
        self._drop, self._timeout_s = section.on_reward_error == "drop", section.reward_timeout_s
        if eval_data is None:
            sides = split_by_group(examples, lambda example: example.key, section.eval_fraction)
        else:
            sides = {side: [e for e in examples if e.record.held_out == (side == "eval")] for side in ("train", "eval")}
        self._sides = dict(limit_sides(sides, section.limit, section.eval_fraction, lambda example: example.id))
        self._examples = {example.id: example for side in self._sides.values() for example in side}
        self._tally = RewardTally(drops=self._drop)

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, in an order that depends on the seed alone."""
        for example in in_seed_order(self._sides[split], seed, self.name, split):
            chat = example.chat if self.tools is None else self.tools.chat(example.chat)
            row = {"row": example.record.number, "where": example.record.where}
            facts = row | {"prompt": example.prompt, "columns": example.columns}
            yield Prompt(example.id, self.name, example.messages, facts=facts, chat=chat)

    def episode(self, prompt: Prompt) -> Episode:
        """Start an attempt at a prompt, of several turns where there are tools to call."""
        return super().episode(prompt) if self.tools is None else start(self, self.tools, prompt)

    def trim(self, fitted: Mapping[str, Prompt | None]) -> None:
        """Put other messages in the place of some prompts', by id, and leave out those that are ``None``.

        Raises:
            InputError: Nothing is left to train on, or nothing is held out.
        """
        for split, examples in self._sides.items():
            fits = ((example, fitted.get(example.id, example)) for example in examples)
            self._sides[split] = [example.with_messages(one.messages) for example, one in fits if one is not None]
            if not self._sides[split]:
                side = "to train on" if split == "train" else "held out"
                raise InputError(f"tasks: {self.name}: no prompt {side} has room in the context; nothing is left")

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the oracle column's answer, or ``None`` where the data hold none."""
        answer = self._examples[prompt.id].oracle
        return None if answer is None else [answer]

    @property
    def demonstrates(self) -> bool:
        """Whether perfect answers call tools first."""
        return any(example.calls for example in self._examples.values())

    async def demonstrate(self, prompt: Prompt) -> list[ShownTurn]:
        """Return the (messages, answer) pair of every turn of the oracle's, whose calls are executed."""
        example = self._examples[prompt.id]
        if example.oracle is None or self.tools is None:
            return []
        episode = start(self, self.tools, prompt)
        try:
            return await episode.demonstrate(example.calls, example.oracle)
        finally:
            await episode.close()

    def lexicon(self) -> Iterator[str]:
        """Yield the calls that demonstrations hold."""
        calls = (message for example in self._examples.values() for message in example.calls)
        yield from (json.dumps(message["tool_calls"]) for message in calls)

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Return the recipe's ``reward_range``, where it has one."""
        return self._range

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return the recipe's ``reward_weights`` by the name of the reward function, 1 where it gives none."""
        weights = self._weights or [1.0] * len(self.rewards)
        return {reward.name: float(weight) for reward, weight in zip(self.rewards, weights, strict=True)}

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return the values of the recipe's ``strata`` columns in the prompt's row."""
        return self._examples[prompt.id].strata

    @property
    def rules(self) -> FunctionTask | None:
        """This task, what its rewards log and drop kept apart; ``None`` where a reward is async: it asks somebody."""
        if any(reward.is_async for reward in self.rewards):
            return None
        quiet = copy.copy(self)
        quiet._tally = RewardTally()
        return quiet

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer; async reward functions run in an event loop of their own.

        Raises:
            RewardError: A reward function misbehaved, or the answer would have been dropped.
        """
        with no_running_loop():
            (score,) = asyncio.run(self.score_batch([Answer(prompt, text)]))
        if score is None:
            raise RewardError(f"the answer to {prompt.facts['where']} was dropped by a reward function")
        return score

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score a batch: one call of every reward function, the async ones side by side.

        Returns:
            One score an answer, its parts the unweighted rewards, its total their weighted sum; ``None`` for an answer
            that a function could not rate, where the recipe says ``on_reward_error: drop``.

        Raises:
            RewardError: A function misbehaved and nothing is dropped; names the function, the row and the completion.
        """
        if not answers:
            return []
        if not isinstance(self.tools, StatefulToolbox):
            return await self._scored(answers)
        async with self.tools.furnished(answers) as furnished:
            return await self._scored(furnished)

    async def _scored(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Return the scores of a batch that has all it needs."""
        state = self._progress.state
        rated: dict[int, Rated] = {}
        for index, reward in enumerate(self.rewards):
            if not reward.is_async:
                rated[index] = await rate(reward, answers, state, drop=self._drop, timeout_s=self._timeout_s)
        later = [index for index, reward in enumerate(self.rewards) if reward.is_async]
        calls = [
            rate(self.rewards[index], answers, state, drop=self._drop, timeout_s=self._timeout_s) for index in later
        ]
        rated |= zip(later, await all_of(calls), strict=True)
        return self._combined(answers, [rated[index] for index in range(len(self.rewards))])

    def at_step(self, step: int, max_steps: int) -> None:
        """Tell the reward functions, through ``trainer_state``, how far training has come."""
        super().at_step(step, max_steps)
        self._progress.go(step, max_steps)

    def drain_tally(self) -> RewardTally:
        """Return, and forget, what the reward functions logged and could not rate since the last call."""
        account, fresh = open_account(), RewardTally(drops=self._drop)
        if account is not None:
            return account.pop(id(self), fresh)
        tally, self._tally = self._tally, fresh
        return tally

    @property
    def _open_tally(self) -> RewardTally:
        account = open_account()
        return self._tally if account is None else account.setdefault(id(self), RewardTally(drops=self._drop))

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the mean of every reward, as ``rewards/<name>``."""
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        columns = {r.name: [score.parts[r.name] for score in scores if r.name in score.parts] for r in self.rewards}
        means = {held_out.MEAN_PART.of(name): sum(column) / len(column) for name, column in columns.items() if column}
        return {**super().summarize(results), **means}

    def _combined(self, answers: Sequence[Answer], rated: Sequence[Rated]) -> list[Score | None]:
        """The score of every answer, the tally kept."""
        tally = self._open_tally
        tally.answers += len(answers)
        for result in rated:
            for name, values in result.notes.metrics.items():
                for value in values:
                    tally.log(name, value)
        return [self._combine(answer, index, rated) for index, answer in enumerate(answers)]

    def _combine(self, answer: Answer, index: int, rated: Sequence[Rated]) -> Score | None:
        parts: dict[str, float] = {}
        info: dict[str, Any] = {}
        for reward, result in zip(self.rewards, rated, strict=True):
            value = result.values[index]
            if isinstance(value, RatingError):
                self._count(reward.name, f"{reward.source} {value}")
                return None
            if value is not None:
                parts[reward.name] = value
            info |= {column: values[index] for column, values in result.notes.extra.items()}
        if not parts:
            error = not_rated(self.rewards, answer)
            if not self._drop:
                raise error
            self._count(", ".join(reward.name for reward in self.rewards), first_line(error))
            return None
        total = sum(reward.weight * parts[reward.name] for reward in self.rewards if reward.name in parts)
        if not abs(total) <= LARGEST_REWARD:
            text = f"the weighted sum of the rewards of {answer.prompt.facts['where']} is {total}: {parts}"
            if not self._drop:
                raise RewardError(text)
            self._count(", ".join(parts), text)
            return None
        return Score(total, parts, valid=bool(answer.text.strip()), info=info)

    def _count(self, name: str, error: str) -> None:
        """Count an answer that is left out."""
        tally = self._open_tally
        tally.dropped += 1
        tally.by[name] += 1
        tally.error = error


class _Progress:
    """How far training has come, for a task and its copies alike."""

    def __init__(self) -> None:
        self.state = TrainerState()
        self._first = not int(os.environ.get("RANK", "0"))
        self._first_here = not int(os.environ.get("LOCAL_RANK", "0"))

    def go(self, step: int, max_steps: int) -> None:
        epoch = step / max_steps if max_steps else 0.0
        self.state = TrainerState(step, max_steps, epoch, 1, self._first, self._first_here)
