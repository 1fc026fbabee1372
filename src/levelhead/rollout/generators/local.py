"""The local generator: completions from the model that is being trained, any Hugging Face causal language model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levelhead.errors import PolicyError
from levelhead.policy.backends.base import MakeDecoder
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, Turn
from levelhead.rollout.draws import uniforms
from levelhead.rollout.generators.base import Capabilities, Completion, Request, compute_thread
from levelhead.rollout.logits import LogitsPipeline

COMPACT_FRACTION = 0.125
"""Finished rows leave the batch once they make up this share of it: leaving costs a copy of the cache."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request, and where its completion is waited for."""

    request: Request
    completion: asyncio.Future[Completion]


class LocalGenerator:
    """Draws from the policy that is being trained: no copy of the weights, always the newest version.

    Requests are sampled in batches: one begins as soon as every coroutine that is expected to ask has asked.  Each
    prompt is computed once, however many completions it has; rows that have finished leave the batch.

    Args:
        policy: Whose model samples.
        rows: Completions sampled at once; what the controls say unless given.
        executor: Where batches are sampled; a thread of the generator's own unless given.
    """

    def __init__(self, policy: Policy, rows: int | None = None, executor: Executor | None = None) -> None:
        self._source = self._policy = policy
        self._rows = rows
        self._version = policy.version
        self._executor: Executor = compute_thread(policy.device) if executor is None else executor
        self._owns_thread = executor is None
        self._asking = 0
        self._waiting: list[_Pending] = []
        self._drawing: asyncio.Task[None] | None = None
        self._work: Future[list[Completion]] | None = None
        self._batch: Sequence[_Pending] = ()
        self._closed = False

    @property
    def version(self) -> int:
        """Optimizer updates that the weights in use have seen."""
        return self._version

    @property
    def capabilities(self) -> Capabilities:
        """All that a generator can do."""
        return Capabilities()

    @property
    def policy(self) -> Policy:
        """The policy whose model samples; its weights are read at every call."""
        return self._policy

    async def sync_weights(self) -> None:
        """Take note of the policy's newest version; the weights are shared."""
        self._policy, self._version = self._source, self._source.version

    async def generate(self, request: Request) -> Completion:
        """Draw one completion, together with what else is asked for; see :class:`Generator`.

        Raises:
            PolicyError: The policy's logits are not numbers.
        """
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        self._draw_if_all_wait()
        try:
            return await pending.completion
        finally:
            if pending in self._waiting:
                self._waiting.remove(pending)
            self._call_off_if_given_up()

    def expect(self, count: int) -> None:
        """Announce that this many coroutines are going to ask; see :class:`Generator`."""
        self._asking = count

    def leave(self) -> None:
        """Announce that one of them will not ask again."""
        self._asking -= 1
        self._draw_if_all_wait()

    async def rest(self) -> None:
        """Nothing is held between batches."""

    async def close(self) -> None:
        """Give up what is being sampled at its next token, and end the thread."""
        self._closed = True
        for pending in self._waiting:
            pending.completion.cancel()
        self._call_off_if_given_up()
        if self._drawing is not None:
            await asyncio.wait([self._drawing])
        if self._owns_thread:
            self._executor.shutdown()

    def _draw_if_all_wait(self) -> None:
        if self._drawing is None and self._waiting and len(self._waiting) >= self._asking:
            batch, self._waiting = self._waiting, []
            self._drawing = asyncio.get_running_loop().create_task(self._hand_out(batch))

    async def _hand_out(self, batch: list[_Pending]) -> None:
        """Draw a batch; then begin the next one, if it waits already."""
        batch.sort(key=lambda pending: pending.request.place)
        self._batch = batch
        self._work = self._executor.submit(self._complete, batch)
        try:
            completions = await asyncio.wrap_future(self._work)
        except BaseException as error:
            for pending in batch:
                if not pending.completion.done():
                    pending.completion.set_exception(error)
        else:
            for pending, completion in zip(batch, completions, strict=True):
                if not pending.completion.done():
                    pending.completion.set_result(completion)
        finally:
            self._drawing = self._work = None
            self._batch = ()
            self._draw_if_all_wait()

    def _call_off_if_given_up(self) -> None:
        """Cancel a batch that has not begun to be sampled; one that has begun ends by itself."""
        if self._work is not None and self._given_up():
            self._work.cancel()

    def _complete(self, batch: Sequence[_Pending]) -> list[Completion]:
        """Draw a batch: one call for all groups of the same size, controls and seed."""
        groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for i, pending in enumerate(batch):
            prompt = pending.request.prompt
            groups.setdefault((prompt.id, prompt.token_ids), []).append(i)
        calls: dict[tuple[int, int, int], list[list[int]]] = {}
        for members in groups.values():
            first = batch[members[0]].request
            k = 1 + max(batch[i].request.index for i in members)
            calls.setdefault((k, first.seed, id(first.controls)), []).append(members)
        completions: dict[int, Completion] = {}
        for (k, seed, _), call in calls.items():
            prompts = [batch[members[0]].request.prompt for members in call]
            controls = batch[call[0][0]].request.controls
            turns = self.sample(prompts, k, controls, seed)
            for members, drawn in zip(call, turns, strict=True):
                for i in members:
                    completions[i] = Completion(drawn[batch[i].request.index], (self._version, self._version))
        return [completions[i] for i in range(len(batch))]

    def _given_up(self) -> bool:
        """Whether nobody waits any more for what is being sampled."""
        return self._closed or (len(self._batch) > 0 and all(p.completion.cancelled() for p in self._batch))

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> list[list[Turn]]:
        """Draw k completions of each rendered prompt, here and now.

        Args:
            prompts: Rendered.
            k: Completions of each.
            controls: Temperature, lengths, penalties and the like.
            seed: Of the call.

        Returns:
            One list of k turns a prompt, in order.

        Raises:
            CancelledError: Nobody waits any more.
            PolicyError: The policy's logits are not numbers.
        """
        turns: list[list[Turn]] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
        chunk = max(1, (self._rows or controls.rows_at_once) // k)
        make_decoder = self._policy.backend.decoders(self._policy)
        for start in range(0, len(by_length), chunk):
            members = by_length[start : start + chunk]
            ids = [prompts[i].id for i in members]
            draws_bn = np.stack([uniforms(seed, one, n, controls.max_new_tokens) for one in ids for n in range(k)])
            rows = self._draw([prompts[i] for i in members], k, draws_bn, controls, make_decoder)
            for place, i in enumerate(members):
                turns[i] = rows[place * k : (place + 1) * k]
        return turns

    def _draw(
        self,
        prompts: list[Prompt],
        k: int,
        draws_bn: NDArray[np.float64],
        controls: Sampling,
        make_decoder: MakeDecoder,
    ) -> list[Turn]:
        """Draw k completions of each prompt to their end, prompt after prompt."""
        codec = self._policy.codec
        device = self._policy.device
        budget = controls.max_new_tokens
        stops = torch.tensor(sorted(codec.stop_ids), device=device)
        decoder = make_decoder(prompts, k, budget)
        logits = decoder.start()
        if bool(logits.isnan().any()):
            raise PolicyError(
                "the policy's logits are not numbers, so its weights are lost; go on from the newest checkpoint with "
                "--resume, a lower learning rate, and guard.policy: protect"
            )
        pipeline = LogitsPipeline(controls, codec.stop_ids, logits.shape[-1])
        live = torch.arange(len(draws_bn), device=device)
        draws = torch.from_numpy(draws_bn).to(device)
        # One line a row; a row that has left keeps what it has.
        ids = torch.zeros((len(live), budget), dtype=torch.long, device=device)
        logprobs, behaviour = logits.new_zeros(ids.shape), logits.new_zeros(ids.shape)
        alive = torch.ones(len(live), dtype=torch.bool, device=device)
        for position in range(budget):
            if self._given_up():
                raise CancelledError
            history = ids[live, :position] if pipeline.needs_history else ids[:, :0]
            drawn = pipeline.draw(logits, history, position, draws[:, position])
            tokens = drawn.tokens_b
            for column, new in ((ids, tokens), (logprobs, drawn.policy_b), (behaviour, drawn.behaviour_b)):
                column.select(1, position).index_copy_(0, live, new)
            alive = alive & ~torch.isin(tokens, stops)
            alive_count = int(alive.sum())
            if alive_count == 0 or position + 1 == budget:
                break
            if len(live) - alive_count >= max(1, COMPACT_FRACTION * len(live)):
                keep = alive.nonzero()[:, 0]
                decoder.keep(keep)
                draws, tokens, live = draws[keep], tokens[keep], live[keep]
                alive = torch.ones(len(live), dtype=torch.bool, device=device)
            logits = decoder.step(tokens)
        contexts = [prompt.token_ids for prompt in prompts for _ in range(k)]
        return _turns(contexts, ids[:, : position + 1], logprobs, behaviour, stops)


def _turns(
    contexts: list[tuple[int, ...]], ids: Tensor, logprobs: Tensor, behaviour: Tensor, stops: Tensor
) -> list[Turn]:
    """Return the sampled tokens of each row, up to and with its stop token, as a turn."""
    stopped = torch.isin(ids, stops)
    first = torch.where(stopped.any(1), stopped.int().argmax(1) + 1, ids.shape[1]).tolist()
    ended = stopped.any(1).tolist()
    columns = zip(contexts, first, ended, ids.tolist(), logprobs.tolist(), behaviour.tolist(), strict=True)
    return [
        Turn(context, tuple(tokens[:n]), tuple(policy[:n]), tuple(sampled[:n]), "stop" if end else "length")
        for context, n, end, tokens, policy, sampled in columns
    ]
