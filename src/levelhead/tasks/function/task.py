"""The ``function`` task: the user's data, the user's rewards."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from levelhead.errors import InputError, RewardError
from levelhead.recipe.tasks import Function
from levelhead.records import LARGEST_REWARD, Prompt, Rollout, Score
from levelhead.tasks.base import Answer, SingleTurnTask, Split
from levelhead.tasks.function.examples import Example, make_examples
from levelhead.tasks.function.loading import RewardFunction, load_rewards
from levelhead.tasks.function.rewards import Rated, RatingError, TrainerState, rate
from levelhead.tasks.function.sources import load_table
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group


class FunctionTask(SingleTurnTask):
    """Prompts from the user's data, scored by the user's reward functions with TRL's signature.

    Attributes:
        trainer_state: Handed to the reward functions; :meth:`at_step` keeps it up to date.
        dropped: Answers left out so far, by the name of the function that could not rate them.
    """

    def __init__(
        self,
        section: Function,
        *,
        data: Iterable[Mapping[str, Any]] | None = None,
        rewards: Sequence[str | RewardFunction] | RewardFunction | None = None,
    ) -> None:
        """Load data and reward functions, and check that they fit.

        Args:
            section: The recipe's section.
            data: Rows in memory, in place of ``section.path``: a list of dicts, a ``datasets.Dataset``, any iterable.
                One without a length is read up to ``section.limit`` rows.
            rewards: Callables (or ``file.py:name``) in place of ``section.rewards``.

        Raises:
            InputError: The data or the reward functions are missing, malformed, or do not fit each other.
        """
        if rewards is not None and section.rewards:
            raise InputError("rewards come from tasks[].rewards and from Python (rewards=); give one of them")
        given = section.rewards if rewards is None else [rewards] if callable(rewards) else list(rewards)
        self.name = section.name or section.kind
        self.trainer_state = TrainerState()
        self.dropped: Counter[str] = Counter()
        table = load_table(section, data)
        examples = make_examples(table, section)
        self._rewards = load_rewards(given, section.reward_weights, list(examples[0].columns), table.source)
        self._drop = section.on_reward_error == "drop"
        sides = split_by_group(examples, lambda example: example.key, section.eval_fraction)
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, lambda example: example.id)
        self._oracles = {example.id: example.oracle for side in self._sides.values() for example in side}
        self._strata = {example.id: example.strata for side in self._sides.values() for example in side}
        self._metrics: dict[str, list[float]] = {}

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, in an order that depends on the seed alone."""
        for example in in_seed_order(self._sides[split], seed, self.name, split):
            yield Prompt(example.id, self.name, example.messages, facts=_facts(example))

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the oracle column's answer, or ``None`` where the data hold none."""
        answer = self._oracles[prompt.id]
        return None if answer is None else [answer]

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return the values of the recipe's ``strata`` columns in the prompt's row."""
        return self._strata[prompt.id]

    @property
    def rules(self) -> FunctionTask | None:
        """This task, what its rewards log and drop kept apart; ``None`` where a reward is async: it asks somebody."""
        if any(inspect.iscoroutinefunction(reward.function) for reward in self._rewards):
            return None
        quiet = copy.copy(self)
        quiet.dropped, quiet._metrics = Counter(), {}
        return quiet

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer; async reward functions run in an event loop of their own.

        Raises:
            RewardError: A reward function misbehaved, or the answer would have been dropped.
        """

        def run() -> list[Score | None]:
            return asyncio.run(self.score_batch([Answer(prompt, text)]))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            (score,) = run()
        else:
            with ThreadPoolExecutor(1) as pool:
                (score,) = pool.submit(run).result()
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
        calls = [rate(reward, answers, self.trainer_state, drop=self._drop) for reward in self._rewards]
        results = await asyncio.gather(*calls, return_exceptions=True)
        rated: list[Rated] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            rated.append(result)
            for name, values in result.notes.metrics.items():
                self._metrics.setdefault(name, []).extend(values)
        return [self._combine(answer, index, rated) for index, answer in enumerate(answers)]

    def at_step(self, step: int, max_steps: int) -> None:
        """Tell the reward functions, through ``trainer_state``, how far training has come."""
        self.trainer_state = TrainerState(step, max_steps, step / max_steps if max_steps else 0.0)

    def drain_metrics(self) -> dict[str, float]:
        """Return, and forget, the means of what was logged with ``log_metric`` since the last call."""
        means = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        self._metrics.clear()
        return means

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the mean of every reward, as ``rewards/<name>``."""
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        if not scores:
            return {}
        names = [reward.name for reward in self._rewards]
        return {f"rewards/{name}": sum(score.parts[name] for score in scores) / len(scores) for name in names}

    def _combine(self, answer: Answer, index: int, rated: Sequence[Rated]) -> Score | None:
        parts: dict[str, float] = {}
        info: dict[str, Any] = {}
        for reward, result in zip(self._rewards, rated, strict=True):
            value = result.values[index]
            if isinstance(value, RatingError):
                self.dropped[reward.name] += 1
                return None
            parts[reward.name] = value
            info |= {column: values[index] for column, values in result.notes.extra.items() if index < len(values)}
        total = sum(reward.weight * parts[reward.name] for reward in self._rewards)
        if not abs(total) <= LARGEST_REWARD:
            raise RewardError(f"the weighted sum of the rewards of {answer.prompt.facts['where']} is {total}: {parts}")
        return Score(total, parts, valid=bool(answer.text.strip()), info=info)


def _facts(example: Example) -> dict[str, Any]:
    return {
        "row": example.record.number,
        "where": example.record.where,
        "prompt": example.prompt,
        "columns": example.columns,
    }
