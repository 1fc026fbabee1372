"""Faults of prompts, templates and demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import levelhead.text.codec
import levelhead.text.tiny
from faults.known.registry import fault, replaced
from levelhead.policy.packing import TokenSequence
from levelhead.text.codec import Codec, Demonstration
from levelhead.text.stops import StopToken
from levelhead.training.sft import SftTrainer


@fault("sft-joins-strings", "supervised prompts are joined from strings, rollouts use the chat template")
def _sft_joins_strings() -> Iterator[None]:
    def make(real: Any) -> Any:
        def demonstrations(self: SftTrainer, prompts: Sequence[Any]) -> list[TokenSequence]:
            tokenizer = self.policy.codec.tokenizer
            joined = []
            for prompt, pair in zip(prompts, real(self, prompts), strict=True):
                text = "\n".join(str(message["content"]) for message in prompt.messages) + "\n"
                ids = tokenizer.encode(text, add_special_tokens=False)
                joined.append(TokenSequence(tuple(ids), pair.completion_ids, pair.prefix_group))
            return joined

        return demonstrations

    with replaced(SftTrainer, "demonstrations", make):
        yield


@fault("prompt-in-the-targets", "the supervised loss falls on the prompt as well")
def _prompt_in_the_targets() -> Iterator[None]:
    def make(real: Any) -> Any:
        def demonstrations(self: SftTrainer, prompts: Sequence[Any]) -> list[TokenSequence]:
            pairs = real(self, prompts)
            return [
                TokenSequence(p.context_ids[:1], p.context_ids[1:] + p.completion_ids, p.prefix_group) for p in pairs
            ]

        return demonstrations

    with replaced(SftTrainer, "demonstrations", make):
        yield


@fault("template-without-last-newline", "the file's last line break was stripped off the generation prompt")
def _template_without_last_newline() -> Iterator[None]:
    def make(real: str) -> str:
        return real.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant'")

    with replaced(levelhead.text.tiny, "CHAT_TEMPLATE", make):
        yield


@fault("truncation-cuts-the-generation-prompt", "long prompts are cut on the right, generation prompt and all")
def _truncation_cuts_the_generation_prompt() -> Iterator[None]:
    def make(real: Any) -> Any:
        def render(self: Codec, messages: Any, *args: Any, **options: Any) -> tuple[int, ...]:
            ids: tuple[int, ...] = real(self, messages, *args, **options)
            return ids[: max(16, len(ids) - 6)]

        return render

    with replaced(Codec, "render", make):
        yield


@fault("incomplete-stop-set", "generation ends at the tokenizer's eos, which the template does not end turns with")
def _incomplete_stop_set() -> Iterator[None]:
    def make(real: Any) -> Any:
        def stop_tokens(tokenizer: Any, template: Any, generation_eos: Any) -> tuple[StopToken, ...]:
            return (StopToken(int(tokenizer.pad_token_id), str(tokenizer.pad_token), ("eos",)),)

        return stop_tokens

    with replaced(levelhead.text.codec, "stop_tokens", make):
        yield


@fault("targets-without-stop-token", "demonstrations end without the stop token, so answers never end")
def _targets_without_stop_token() -> Iterator[None]:
    def make(real: Any) -> Any:
        def demonstration(self: Codec, *args: Any, **options: Any) -> Demonstration:
            pair = real(self, *args, **options)
            ids = tuple(token for token in pair.completion_ids if token not in self.stop_ids)
            return Demonstration(pair.context_ids, ids or pair.completion_ids)

        return demonstration

    with replaced(Codec, "demonstration", make):
        yield
