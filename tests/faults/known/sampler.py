"""Faults of the sampler: padding, positions, weights, controls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

import levelhead.rollout.generators.local
from faults.known.registry import fault, replaced
from levelhead.policy.backends.cpu.backend import Cpu
from levelhead.policy.backends.sdpa import PaddedDecoder, Sdpa
from levelhead.policy.policy import Policy
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.rollout.logits import Distribution, LogitsPipeline


@fault("response-cut-by-padding-count", "the response is cut behind as many tokens as the prompt has, padding aside")
def _response_cut_by_padding_count() -> Iterator[None]:
    def make(real: Any) -> Any:
        def sample(self: LocalGenerator, prompts: Sequence[Any], k: int, controls: Any, seed: int) -> Any:
            longest = max(len(prompt.token_ids) for prompt in prompts)
            cut = []
            for prompt, turns in zip(prompts, real(self, prompts, k, controls, seed), strict=True):
                early = prompt.token_ids[len(prompt.token_ids) - (longest - len(prompt.token_ids)) :]
                early = early if longest > len(prompt.token_ids) else ()
                zeros = (0.0,) * len(early)
                cut.append(
                    [
                        replace(
                            turn,
                            completion_ids=early + turn.completion_ids,
                            logprobs=zeros + turn.logprobs,
                            behaviour_logprobs=zeros + turn.behaviour_logprobs,
                        )
                        for turn in turns
                    ]
                )
            return cut

        return sample

    with replaced(LocalGenerator, "sample", make):
        yield


def _padded(positions_of: Callable[[Any, Any], Any], masked: bool) -> Iterator[None]:
    """Let the sampler pad its prompts, with other positions, or without the mask over padding."""

    def forward(self: Any, ids: Any, mask: Any) -> Any:
        output = self._policy.forward(
            self._policy.base,
            input_ids=ids,
            attention_mask=mask if masked else None,
            position_ids=positions_of(ids, mask),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    with (
        replaced(PaddedDecoder, "forward", lambda _: forward),
        replaced(Cpu, "decoders", lambda _: Sdpa.decoders),
    ):
        yield


@fault("positions-count-padding", "while decoding, positions count the padding on the left")
def _positions_count_padding() -> Iterator[None]:
    def positions(ids: Any, mask: Any) -> Any:
        real = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return real if ids.shape[1] > 1 else torch.full_like(ids, mask.shape[1] - 1)

    yield from _padded(positions, masked=True)


@fault("attention-to-padding", "the sampler's attention looks at the padding on the left")
def _attention_to_padding() -> Iterator[None]:
    def positions(ids: Any, mask: Any) -> Any:
        return (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]

    yield from _padded(positions, masked=False)


@fault("draws-depend-on-the-batch", "all rows share one random generator, so a draw depends on its neighbours")
def _draws_depend_on_the_batch() -> Iterator[None]:
    import numpy as np

    shared = np.random.default_rng(0)
    with replaced(
        levelhead.rollout.generators.local,
        "uniforms",
        lambda _: lambda seed, prompt, index, n: shared.random(n),
    ):
        yield


@fault("stale-sampler-weights", "the sampler keeps the weights it was made with; sync moves the version alone")
def _stale_sampler_weights() -> Iterator[None]:
    def made(real: Any) -> Any:
        def init(self: Any, policy: Policy, *args: Any, **options: Any) -> None:
            real(self, policy, *args, **options)
            self._policy = copy.copy(policy)
            self._policy.base = copy.deepcopy(policy.base)

        return init

    def synced(real: Any) -> Any:
        async def sync(self: Any) -> None:
            self._version = self._source.version

        return sync

    with replaced(LocalGenerator, "__init__", made), replaced(LocalGenerator, "sync_weights", synced):
        yield


@fault("penalties-count-the-prompt", "penalties count prompt tokens, so the stop token, absent from it, wins")
def _penalties_count_the_prompt() -> Iterator[None]:
    rows: dict[str, Any] = {}

    def prefill(real: Any) -> Any:
        def decoders(self: Cpu, policy: Policy) -> Any:
            def run(prompts: Sequence[Any], k: int, budget: int) -> Any:
                longest = max(len(prompt.token_ids) for prompt in prompts)
                padded = [(*p.token_ids, *[p.token_ids[0]] * (longest - len(p.token_ids))) for p in prompts]
                rows["ids"] = torch.tensor(padded).repeat_interleave(k, 0).to(policy.device)
                return real(self, policy)(prompts, k, budget)

            return run

        return decoders

    def call(real: Any) -> Any:
        def pipeline(self: LogitsPipeline, logits: Any, history: Any, lengths: Any) -> Distribution:
            seen = rows["ids"]
            if len(seen) != len(logits) or not self._penalties:
                return real(self, logits, history, lengths)  # type: ignore[no-any-return]
            return real(self, logits, torch.cat([seen, history], 1), lengths + seen.shape[1])  # type: ignore[no-any-return]

        return pipeline

    with (
        replaced(Cpu, "decoders", prefill),
        replaced(LogitsPipeline, "__call__", call),
    ):
        yield


@fault(
    "logprobs-after-controls",
    "the recorded log-probabilities are those after top-p, not the policy's",
    "grpo.sampling.top_p=0.7",
)
def _logprobs_after_controls() -> Iterator[None]:
    def make(real: Any) -> Any:
        def pipeline(self: LogitsPipeline, *args: Any) -> Distribution:
            chance = real(self, *args)
            return Distribution(chance.behaviour_bv, chance.behaviour_bv)

        return pipeline

    with replaced(LogitsPipeline, "__call__", make):
        yield
