"""Faults of the trainer: masks, labels, temperature, reference, dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from faults.known.registry import fault, replaced
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import Policy
from levelhead.training.grpo import GrpoTrainer


def _packed(change: Callable[[MicroBatch, Sequence[TokenSequence], int], MicroBatch]) -> Iterator[None]:
    """Change every micro-batch that the trainer packs."""

    def make(real: Any) -> Any:
        def pack(self: Policy, sequences: Sequence[TokenSequence], tokens: int) -> Any:
            return [change(micro, sequences, self.codec.pad_id) for micro in real(self, sequences, tokens)]

        return pack

    with replaced(Policy, "pack", make):
        yield


@fault(
    "mask-for-right-padding", "the mask is built as if padding stood on the other side: the loss falls on the prompt"
)
def _mask_for_right_padding() -> Iterator[None]:
    def change(micro: MicroBatch, sequences: Sequence[TokenSequence], pad_id: int) -> MicroBatch:
        flat = micro.input_ids.flatten()
        gather = (micro.gather - 8).clamp(min=0)
        return replace(micro, gather=gather, targets=flat[gather + 1])

    yield from _packed(change)


@fault("labels-off-by-one", "labels are not shifted: each state is asked for the token it has read")
def _labels_off_by_one() -> Iterator[None]:
    def change(micro: MicroBatch, sequences: Sequence[TokenSequence], pad_id: int) -> MicroBatch:
        return replace(micro, gather=(micro.gather + 1).clamp(max=micro.input_ids.numel() - 1))

    yield from _packed(change)


@fault(
    "pad-is-end-of-turn", "the mask hides the padding token, which is the end-of-turn token: no answer learns to end"
)
def _pad_is_end_of_turn() -> Iterator[None]:
    def make(real: Any) -> Any:
        def pack(self: Policy, sequences: Sequence[TokenSequence], tokens: int) -> Any:
            hidden = self.codec.stop_id
            return [_without(micro, hidden) for micro in real(self, sequences, tokens)]

        return pack

    with replaced(Policy, "pack", make):
        yield


def _without(micro: MicroBatch, token: int) -> MicroBatch:
    """Return a micro-batch without the labels that equal a token; a sequence keeps at least one."""
    keep = micro.targets != token
    start, lengths = 0, []
    for length in micro.lengths:
        part = keep[start : start + length]
        if not bool(part.any()):
            part[0] = True
        lengths.append(int(part.sum()))
        start += length
    return replace(micro, gather=micro.gather[keep], targets=micro.targets[keep], lengths=tuple(lengths))


@fault("logprobs-of-the-raw-prompt", "the trainer scores completions behind the raw prompt, without the chat template")
def _logprobs_of_the_raw_prompt() -> Iterator[None]:
    def raw(policy: Policy, sequence: TokenSequence) -> TokenSequence:
        text = policy.codec.tokenizer.decode(list(sequence.context_ids), skip_special_tokens=True)
        ids = policy.codec.tokenizer.encode(text, add_special_tokens=False)
        return TokenSequence(tuple(ids), sequence.completion_ids, sequence.prefix_group)

    def make(real: Any) -> Any:
        def step(self: GrpoTrainer, number: int) -> Any:
            def pack(policy_pack: Any) -> Any:
                return lambda policy, sequences, tokens: policy_pack(
                    policy, [raw(policy, sequence) for sequence in sequences], tokens
                )

            with replaced(Policy, "pack", pack):
                return real(self, number)

        return step

    with replaced(GrpoTrainer, "step", make):
        yield


@fault(
    "temperature-in-sampling-only",
    "rollouts are drawn at a temperature that the trainer does not apply",
    "grpo.sampling.temperature=0.6",
)
def _temperature_in_sampling_only() -> Iterator[None]:
    def make(real: Any) -> Any:
        return lambda self, batch, temperature=1.0: real(self, batch, 1.0)

    with replaced(Policy, "score", make):
        yield


@fault(
    "reference-not-frozen",
    "the reference is the policy itself, so the KL stays 0 whatever happens",
    "grpo.kl.coef=0.05",
)
def _reference_not_frozen() -> Iterator[None]:
    def make(real: Any) -> Any:
        def keep_reference(self: Policy, *, trained: bool) -> None:
            self._reference = self.base

        return keep_reference

    with replaced(Policy, "keep_reference", make):
        yield


@fault("dropout-left-on", "the trainer runs with the dropout that the model's config asks for")
def _dropout_left_on() -> Iterator[None]:
    def make(real: Any) -> Any:
        def disable_dropout(self: Policy) -> None:
            for module in self.model.modules():
                if isinstance(getattr(module, "attention_dropout", None), float):
                    module.attention_dropout = 0.1

        return disable_dropout

    with replaced(Policy, "disable_dropout", make):
        yield
