"""Sampling, the sampler's weights, prompts, and scores on their way from the answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from faults.unlisted.registry import NEMO, OPENRLHF, PRIME, SWIFT, TRL, VERL, swapped, unlisted
from levelhead.policy.backends.cpu.backend import SharedDecoder
from levelhead.policy.policy import Policy
from levelhead.records import Prompt, Score
from levelhead.rollout.logits import LogitsPipeline
from levelhead.tasks.base import Answer
from levelhead.tasks.function import FunctionTask
from levelhead.training.collect import Collector
from levelhead.training.stream import PromptStream
from levelhead.training.weight_copies import WeightCopies


@unlisted(
    "sampling-defaults-of-the-model",
    "what the recipe leaves at its default is taken from the model's generation_config: top-k 20 and top-p 0.8",
    TRL + "issues/5783",
    TRL + "pull/3494",
    kind="sampling",
    named_by=["top_k", "top-k", "top_p", "top-p", "nucleus", "entropy sampl", "distribution sampl", "never drawn"],
)
def _own_sampling_defaults() -> Iterator[None]:
    def make(real: Any) -> Any:
        def init(self: LogitsPipeline, controls: Any, *args: Any, **options: Any) -> None:
            if controls.temperature:
                controls = controls.model_copy(update={"top_k": 20, "top_p": 0.8})
            real(self, controls, *args, **options)

        return init

    with swapped(LogitsPipeline, "__init__", make):
        yield


REFRESHED = 12
"""Calls of the sampler after which a cache of keys has been overwritten."""


@unlisted(
    "prompt-cache-outlives-the-weights",
    "the engine keeps the keys and values of prompts over weight updates: new weights read what old ones have made",
    NEMO + "pull/4018",
    PRIME + "pull/2270",
    OPENRLHF + "pull/703",
    kind="weights",
    named_by=["stale", "cache", "older weights", "old weights", "sync"],
)
def _prompt_cache_outlives_the_weights() -> Iterator[None]:
    cache: dict[int, list[Any]] = {}

    def make(real: Any) -> Any:
        def start(self: SharedDecoder) -> Any:
            policy, fused_forward = self._policy, self._fused_forward
            entry = cache.get(id(policy.base))
            if entry is None or entry[1] >= REFRESHED:
                with torch.inference_mode(False), torch.no_grad():
                    entry = cache[id(policy.base)] = [copy.deepcopy(policy.base), 0]
            entry[1] += 1
            self._policy, self._fused_forward = copy.copy(policy), None
            self._policy.base = entry[0]
            try:
                return real(self)
            finally:
                self._policy, self._fused_forward = policy, fused_forward

        return start

    with swapped(SharedDecoder, "start", make):
        yield


@unlisted(
    "batches-staler-than-declared",
    "the weights that draw ahead take up every second update alone, and are said to be the newest",
    PRIME + "pull/1901",
    kind="weights",
    named_by=["stale", "behind", "off_policy", "older", "version", "sync"],
    settings=["grpo.async=1"],
)
def _batches_staler_than_declared() -> Iterator[None]:
    turns = {"n": 0}

    def make(real: Any) -> Any:
        def newest(self: WeightCopies) -> Any:
            turns["n"] += 1
            if turns["n"] % 2:
                return real(self)
            with swapped(Policy, "follow", lambda _: lambda inference_copy, other: None):
                return real(self)

        return newest

    with swapped(WeightCopies, "newest", make):
        yield


@unlisted(
    "late-answers-time-out",
    "answers are scored one after another against one clock, and those behind the twelfth of a call get 0",
    VERL + "pull/6673",
    kind="rewards",
    named_by=[
        "reward batch",
        "reward order",
        "score batch",
        "score order",
        "scored alone",
        "reward alone",
        "scores depend",
    ],
)
def _late_answers_time_out() -> Iterator[None]:
    def make(real: Any) -> Any:
        async def score_batch(self: FunctionTask, answers: Sequence[Answer]) -> list[Any]:
            scores = await real(self, answers)
            return [s if i < 12 or s is None else replace(s, total=0.0) for i, s in enumerate(scores)]

        return score_batch

    with swapped(FunctionTask, "score_batch", make):
        yield


@unlisted(
    "unrated-answers-get-zero",
    "an answer that the verifier could not rate counts as one that it rated 0, and moves its group's baseline",
    TRL + "issues/6804",
    NEMO + "pull/2207",
    kind="rewards",
    named_by=["unrated", "could not be rated", "dropped", "not rated", "unscored", "no score", "nan"],
    settings=["tasks.0.on_reward_error=drop"],
    reward="gappy",
)
def _unrated_answers_get_zero() -> Iterator[None]:
    def make(real: Any) -> Any:
        async def score_batch(self: FunctionTask, answers: Sequence[Answer]) -> list[Any]:
            return [Score(0.0) if score is None else score for score in await real(self, answers)]

        return score_batch

    with swapped(FunctionTask, "score_batch", make):
        yield


@unlisted(
    "order-never-reshuffled",
    "every epoch has the order of the first: the seed of the shuffle does not know the epoch",
    TRL + "pull/6351",
    kind="data",
    named_by=["order epoch", "shuffle", "same order", "epochs"],
)
def _order_never_reshuffled() -> Iterator[None]:
    def make(real: Any) -> Any:
        def draw(self: PromptStream, index: int) -> Any:
            epochs, self._epochs = self._epochs, [0] * len(self._epochs)
            try:
                return real(self, index)
            finally:
                self._epochs = epochs

        return draw

    with swapped(PromptStream, "_draw", make):
        yield


@unlisted(
    "prompts-cut-on-the-left",
    "a limit on the prompt that nobody set cuts it on the left: the policy is asked the end of a question",
    SWIFT + "issues/4958",
    kind="data",
    named_by=[
        "prompt cut",
        "prompt truncat",
        "prompt begin",
        "prompt token",
        "prompt differ",
        "context cut",
        "prompt ids",
    ],
)
def _prompts_cut_on_the_left() -> Iterator[None]:
    def make(real: Any) -> Any:
        def render(self: Collector, prompt: Prompt) -> Prompt:
            made = real(self, prompt)
            return made.with_tokens(made.token_ids[-24:])

        return render

    with swapped(Collector, "render", make):
        yield
