"""Mutations of what the checks of tokens guard."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import levelhead.text.tiny
from levelhead.policy.packing import TokenSequence
from levelhead.records import Turn
from levelhead.text.codec import Codec
from levelhead.training.collect import Collector
from levelhead.training.prepare import Setup
from levelhead.training.sft import SftTrainer
from preflight.mutations.base import Context, Mutation, fault, patch


def _template(old: str, new: str) -> Callable[[], Context]:
    return patch(levelhead.text.tiny, "CHAT_TEMPLATE", lambda real: real.replace(old, new))


def _rendered(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Callable[[], Context]:
    """Change the ids of every rendered prompt."""

    def make(real: Any) -> Any:
        return lambda self, messages, *args, **options: change(real(self, messages, *args, **options))

    return patch(Codec, "render", make)


def _turns(change: Callable[[Turn], Turn]) -> Callable[[], Context]:
    """Change every turn between sampler and trainer."""

    def make(real: Any) -> Any:
        def rollout(self: Any, prompt: Any, turns: Any) -> Any:
            made = real(self, prompt, turns)
            return replace(made, turns=tuple(change(turn) for turn in made.turns))

        return rollout

    return patch(Collector, "_rollout", make)


def _from(turn: Turn, start: int) -> Turn:
    return replace(
        turn,
        completion_ids=turn.completion_ids[start:],
        logprobs=turn.logprobs[start:],
        behaviour_logprobs=turn.behaviour_logprobs[start:],
    )


def _always_one_answer() -> Context:
    def make(real: Any) -> Any:
        def demonstrations(self: SftTrainer, prompts: Sequence[Any]) -> list[TokenSequence]:
            answer = (*self.policy.codec.tokenizer.encode("something else"), self.policy.codec.stop_id)
            return [TokenSequence(p.context_ids, answer, p.prefix_group) for p in real(self, prompts)]

        return demonstrations

    return patch(SftTrainer, "demonstrations", make)()


def other_vocabulary(setup: Setup) -> None:
    setup.policy.codec.tokenizer.add_tokens([f"<extra {i}>" for i in range(400)])


def small_embedding(setup: Setup) -> None:
    setup.policy.base.resize_token_embeddings(300)


def foreign_stop(setup: Setup) -> None:
    setup.policy.codec.stop_ids = frozenset({*setup.policy.codec.stop_ids, 4096})


def _saved(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[], Context]:
    """Change the tokenizer's file after a checkpoint has written it."""

    def make(real: Any) -> Any:
        def save(self: Codec, folder: Path) -> None:
            real(self, folder)
            path = Path(folder) / "tokenizer.json"
            path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")

        return save

    return patch(Codec, "save", make)


def _without_merges(saved: dict[str, Any]) -> dict[str, Any]:
    return saved | {"model": saved["model"] | {"merges": saved["model"]["merges"][:4]}}


MUTATIONS = (
    fault("tokens/generation-prompt", "template-without-last-newline"),
    Mutation(
        "tokens/generation-prompt",
        "the template has no generation prompt",
        _template("{{- '<|im_start|>assistant\\n' -}}", ""),
    ),
    Mutation(
        "tokens/generation-prompt",
        "the generation prompt opens a turn of the user",
        _template("{{- '<|im_start|>assistant\\n' -}}", "{{- '<|im_start|>user\\n' -}}"),
    ),
    Mutation(
        "tokens/generation-prompt",
        "the generation prompt replaces the last turn's end",
        _template("'<|im_end|>\\n' -}}", "('' if add_generation_prompt and loop.last else '<|im_end|>\\n') -}}"),
    ),
    fault("tokens/context", "truncation-cuts-the-generation-prompt"),
    Mutation("tokens/context", "long prompts are cut on the left", _rendered(lambda ids: ids[-16:])),
    Mutation("tokens/context", "the beginning of a prompt is encoded twice", _rendered(lambda ids: ids[:5] + ids)),
    Mutation("tokens/context", "a line break follows the generation prompt", _rendered(lambda ids: ids + ids[-1:])),
    fault("tokens/same-prompt", "sft-joins-strings"),
    fault("tokens/same-prompt", "prompt-in-the-targets"),
    Mutation("tokens/same-prompt", "demonstrations hold another answer than the oracle's", _always_one_answer),
    fault("tokens/made-once", "retokenized-from-text"),
    fault("tokens/made-once", "appended-end-of-turn"),
    Mutation("tokens/made-once", "the first token of a completion is lost", _turns(lambda turn: _from(turn, 1))),
    Mutation("tokens/vocabulary", "the tokenizer has grown since the model was made", touch=other_vocabulary),
    Mutation("tokens/vocabulary", "the embedding was cut", touch=small_embedding),
    Mutation("tokens/vocabulary", "a stop id is another tokenizer's", touch=foreign_stop),
    Mutation(
        "tokens/round-trip",
        "the saved tokenizer normalises",
        _saved(lambda saved: saved | {"normalizer": {"type": "NFC"}}),
    ),
    Mutation("tokens/round-trip", "merges are lost on the way", _saved(_without_merges)),
    Mutation(
        "tokens/round-trip",
        "special tokens are saved as text",
        _saved(lambda saved: saved | {"added_tokens": []}),
    ),
)
