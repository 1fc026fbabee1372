"""Mutations of what the checks of batching, endings and sampling controls guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import levelhead.rollout.generators.local
import levelhead.rollout.logits
import levelhead.text.tiny
from levelhead.records import Prompt, Turn
from levelhead.rollout.draws import uniforms
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.training.prepare import Setup
from preflight.mutations.base import Context, Mutation, fault, patch

Draws = list[list[Turn]]


def drawn(change: Callable[[Sequence[Prompt], Draws, LocalGenerator], Draws]) -> Callable[[], Context]:
    """Change what the sampler returns."""

    def make(real: Any) -> Any:
        def sample(self: LocalGenerator, prompts: Sequence[Prompt], k: int, controls: Any, seed: int) -> Draws:
            return change(prompts, real(self, prompts, k, controls, seed), self)

        return sample

    return patch(LocalGenerator, "sample", make)


def each(change: Callable[[Turn, LocalGenerator], Turn]) -> Callable[[], Context]:
    """Change every turn that the sampler returns."""
    return drawn(lambda _, turns, sampler: [[change(turn, sampler) for turn in row] for row in turns])


def asked(**changes: Any) -> Callable[[], Context]:
    """Let the sampler draw with other controls than those it is asked for."""

    def make(real: Any) -> Any:
        def sample(self: LocalGenerator, prompts: Sequence[Prompt], k: int, controls: Any, seed: int) -> Draws:
            made: Draws = real(self, prompts, k, controls.model_copy(update=changes), seed)
            return made

        return sample

    return patch(LocalGenerator, "sample", make)


def _by_length(prompts: Sequence[Prompt], turns: Draws, _: LocalGenerator) -> Draws:
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
    return [
        [replace(turn, context_ids=prompt.token_ids) for turn in turns[i]]
        for prompt, i in zip(prompts, order, strict=True)
    ]


def with_ids(turn: Turn, ids: tuple[int, ...], **changes: Any) -> Turn:
    """A turn with other completion ids, and log-probabilities of 0 where there are none."""
    fit = [(*values, *[0.0] * len(ids))[: len(ids)] for values in (turn.logprobs, turn.behaviour_logprobs)]
    return replace(turn, completion_ids=ids, logprobs=fit[0], behaviour_logprobs=fit[1], **changes)


def _one_more(turn: Turn, _: LocalGenerator) -> Turn:
    return with_ids(turn, (*turn.completion_ids, 5)) if turn.finish == "stop" else turn


def _stop_cut_off(turn: Turn, _: LocalGenerator) -> Turn:
    return with_ids(turn, turn.completion_ids[:-1]) if turn.finish == "stop" else turn


def _always_length(turn: Turn, _: LocalGenerator) -> Turn:
    return replace(turn, finish="length")


def _by_row() -> Context:
    rows = iter(range(1 << 30))
    return patch(
        levelhead.rollout.generators.local,
        "uniforms",
        lambda _: lambda seed, name, index, n: uniforms(seed, "", next(rows), n),
    )()


def _by_batch() -> Context:
    def make(real: Any) -> Any:
        def sample(self: LocalGenerator, prompts: Sequence[Prompt], k: int, controls: Any, seed: int) -> Any:
            return real(self, prompts, k, controls, seed + len(prompts))

        return sample

    return patch(LocalGenerator, "sample", make)()


def _pad_is_end(setup: Setup) -> None:
    setup.policy.codec.tokenizer.pad_token = setup.policy.codec.stops[0].text


def _first_token_twice(setup: Setup) -> None:
    tokenizer = setup.policy.codec.tokenizer
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.chat_template = "{{ bos_token }}{{ bos_token }}" + tokenizer.chat_template
    real = tokenizer.encode
    tokenizer.encode = lambda text, **options: [tokenizer.bos_token_id, *real(text, **options)]


def _penalty(change: Callable[[dict[str, float]], dict[str, float]]) -> Callable[[], Context]:
    def make(real: Any) -> Any:
        return lambda logits, history, lengths, **given: real(logits, history, lengths, **change(given))

    return patch(levelhead.rollout.logits, "penalize", make)


LONG = tuple({"prompt": f"Say {n}.", "answer": f"{n} " * 80} for n in range(16))

MUTATIONS = (
    fault("batching/greedy", "response-cut-by-padding-count"),
    fault("batching/greedy", "positions-count-padding"),
    Mutation("batching/greedy", "completions come back in the order of their lengths", drawn(_by_length)),
    fault("batching/alone", "attention-to-padding"),
    fault("batching/alone", "positions-count-padding"),
    Mutation("batching/alone", "completions come back in the order of their lengths", drawn(_by_length)),
    fault("batching/seeded", "draws-depend-on-the-batch"),
    Mutation("batching/seeded", "random numbers belong to rows of the batch", _by_row),
    Mutation("batching/seeded", "the seed depends on the number of prompts", _by_batch),
    fault("stops/complete", "incomplete-stop-set"),
    Mutation("stops/complete", "a token is drawn behind the stop token", each(_one_more), proof=True),
    Mutation("stops/complete", "the stop token is cut off", each(_stop_cut_off), proof=True),
    Mutation("stops/complete", "completions that stopped are said to be cut", each(_always_length), proof=True),
    Mutation("stops/special-tokens", "the first token is written twice", touch=_first_token_twice, status="warn"),
    Mutation(
        "stops/special-tokens",
        "the template closes turns with plain text",
        patch(levelhead.text.tiny, "CHAT_TEMPLATE", lambda real: real.replace("<|im_end|>", "END")),
        status="warn",
    ),
    fault("sampling/penalties", "penalties-count-the-prompt"),
    Mutation("sampling/penalties", "penalties are bonuses", _penalty(lambda given: {k: -v for k, v in given.items()})),
    Mutation(
        "sampling/penalties",
        "the frequency penalty is applied once, whatever the count",
        _penalty(lambda given: given | {"presence": given["presence"] + given["frequency"], "frequency": 0.0}),
    ),
    Mutation("sampling/penalties", "penalties are forgotten", asked(presence_penalty=0.0)),
    Mutation("sampling/temperature", "greedy rollouts", settings=("grpo.sampling.temperature=0",)),
    Mutation("sampling/temperature", "top-k of 1", settings=("grpo.sampling.top_k=1",)),
    Mutation(
        "sampling/temperature",
        "the rollouts of a prompt share their random numbers",
        patch(
            levelhead.rollout.generators.local,
            "uniforms",
            lambda _: lambda seed, name, index, n: uniforms(seed, name, 0, n),
        ),
        proof=True,
    ),
    Mutation(
        "sampling/temperature", "the sampler draws greedily whatever it is asked", asked(temperature=0.0), proof=True
    ),
    Mutation("sampling/min-length", "a minimum that no answer reaches", settings=("grpo.sampling.min_new_tokens=20",)),
    Mutation(
        "sampling/min-length",
        "the same without demonstrations",
        settings=("grpo.sampling.min_new_tokens=20", "sft=null"),
    ),
    Mutation(
        "sampling/min-length",
        "a minimum that some answers do not reach",
        settings=("grpo.sampling.min_new_tokens=12",),
        status="warn",
    ),
    Mutation("sampling/max-length", "rollouts are cut early", settings=("grpo.sampling.max_new_tokens=3",)),
    Mutation("sampling/max-length", "evaluation is cut early", settings=("eval.sampling.max_new_tokens=3",)),
    Mutation("sampling/max-length", "answers are longer than the budget", rows=LONG),
)
