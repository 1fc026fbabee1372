"""Faults between the sampler and the trainer: completions, judged texts and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from faults.known.registry import fault, replaced
from levelhead.text.codec import Codec
from levelhead.training.collect import Collector


def _rollouts(change: Callable[[Codec, Any, Any], Any]) -> Iterator[None]:
    """Change every rollout that the collector makes."""

    def make(real: Any) -> Any:
        def rollout(self: Any, prompt: Any, turns: Any) -> Any:
            return change(self._codec, real(self, prompt, turns), prompt)

        return rollout

    with replaced(Collector, "_rollout", make):
        yield


def _with_ids(turn: Any, ids: tuple[int, ...]) -> Any:
    """Return a turn with other completion ids; log-probabilities are cut, or 0 where there are none."""

    def fit(values: tuple[float, ...]) -> tuple[float, ...]:
        return (*values, *[0.0] * len(ids))[: len(ids)]

    return replace(
        turn, completion_ids=ids, logprobs=fit(turn.logprobs), behaviour_logprobs=fit(turn.behaviour_logprobs)
    )


@fault("retokenized-from-text", "completions are decoded and tokenized again on the way to the trainer")
def _retokenized_from_text() -> Iterator[None]:
    def change(codec: Codec, rollout: Any, prompt: Any) -> Any:
        def again(turn: Any) -> Any:
            ids = tuple(codec.tokenizer.encode(codec.decode(turn.completion_ids), add_special_tokens=False))
            stop = (codec.stop_id,) if turn.finish == "stop" else ()
            return _with_ids(turn, (ids + stop) or turn.completion_ids)

        return replace(rollout, turns=tuple(again(turn) for turn in rollout.turns))

    yield from _rollouts(change)


@fault("appended-end-of-turn", "an end-of-turn that nobody drew is appended to cut completions and trained on")
def _appended_end_of_turn() -> Iterator[None]:
    def change(codec: Codec, rollout: Any, prompt: Any) -> Any:
        turns = [t if t.finish == "stop" else _with_ids(t, (*t.completion_ids, codec.stop_id)) for t in rollout.turns]
        return replace(rollout, turns=tuple(turns))

    yield from _rollouts(change)


@fault("judge-reads-the-prompt", "the text that is judged begins with the end of the prompt", kind="data")
def _judge_reads_the_prompt() -> Iterator[None]:
    def change(codec: Codec, rollout: Any, prompt: Any) -> Any:
        texts = [codec.decode((*turn.context_ids[-12:], *turn.completion_ids)) for turn in rollout.turns]
        return replace(rollout, text=tuple(texts))

    yield from _rollouts(change)


@fault("rewards-out-of-step", "scores are handed to the next rollout of the group", kind="data")
def _rewards_out_of_step() -> Iterator[None]:
    def make(real: Any) -> Any:
        async def answers(self: Any, *args: Any) -> Any:
            moved = []
            for group in await real(self, *args):
                scores = [rollout.score for rollout in group.rollouts]
                scores = scores[-1:] + scores[:-1]
                pairs = zip(group.rollouts, scores, strict=True)
                moved.append(replace(group, rollouts=tuple(rollout.scored(score) for rollout, score in pairs)))
            return moved

        return answers

    with replaced(Collector, "_answers", make):
        yield
