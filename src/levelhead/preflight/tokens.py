"""Tokens: the two stages read the same prompt, the completion starts where the prompt ends, tokens are made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from levelhead.errors import InputError
from levelhead.policy.load import load_saved_codec
from levelhead.policy.packing import TokenSequence
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.records import Prompt, Turn
from levelhead.text.codec import Codec
from levelhead.text.evidence import boundary, read
from levelhead.text.fingerprint import PROBES
from levelhead.text.traits import probe
from levelhead.training.optim import Updater
from levelhead.training.sft import SftTrainer
from levelhead.training.stream import PromptStream

_MARK = "Levelhead"


def check_tokens(context: PreflightContext) -> Iterator[Check]:
    """Compare what every path makes of the same messages."""
    yield _vocabulary(context)  # before anything is sampled: ids without a row would break the draw off
    yield _generation_prompt(context)
    yield _contexts(context)
    if context.recipe.sft is not None:
        yield _same_prompt(context)
    yield _made_once(context)
    yield _round_trip(context)


def demonstrations(context: PreflightContext, prompts: Sequence[Prompt]) -> list[TokenSequence]:
    """Return the demonstrations that the supervised stage would train on; none where a task has no oracle."""
    sft = context.recipe.sft
    with_oracle = [p for p in prompts if _shown(context, p)]
    if sft is None or not with_oracle:
        return []
    tasks = context.setup.tasks
    stream = PromptStream(list(tasks.values()), [1.0] * len(tasks), 0)
    updater = Updater(context.policy.parameters, sft.optimizer, sft.steps, context.policy.matrices)
    return SftTrainer(context.policy, tasks, stream, updater, sft, 0, context.loop).demonstrations(with_oracle)


def spelled(codec: Codec, ids: Sequence[int]) -> str:
    """Return token ids as a line of quoted texts."""
    return " ".join(repr(token.text) for token in read(codec, ids))


def _shown(context: PreflightContext, prompt: Prompt) -> bool:
    task = context.setup.tasks[prompt.task]
    return task.demonstrates or bool(task.oracle(prompt))


def _template(codec: Codec, messages: Sequence[Mapping[str, Any]], *, generation: bool) -> str:
    """Render with the tokenizer alone."""
    chat = [dict(message) for message in messages]
    variables = codec.template.variables
    text = codec.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=generation, **variables)
    return str(text)


def _generation_prompt(context: PreflightContext) -> Check:
    """The generation prompt is there, and is all that the template writes before an answer."""
    codec = context.codec
    question = {"role": "user", "content": "Question"}
    prompt = _template(codec, [question], generation=True)
    bare = _template(codec, [question], generation=False)
    answered = _template(codec, [question, {"role": "assistant", "content": _MARK}], generation=False)
    header = prompt.removeprefix(bare) if prompt.startswith(bare) else prompt[-40:]
    between = answered.removeprefix(prompt).partition(_MARK)[0] if answered.startswith(prompt) else None
    traits = probe(codec)
    evidence = {
        "generation_prompt": header,
        "before_answer": between,
        "after_stop": traits.after_stop,
        "rewrites_turns": traits.rewrites_turns,
        "drops_reasoning": traits.drops_reasoning,
    }
    wrong = None
    if between and "\n" in between and not between.strip():
        wrong = (
            f"the generation prompt ends with {header[-24:]!r}, but the template writes {between!r} before every "
            "answer: its last line break was stripped, and answers start on the wrong side of it"
        )
    elif answered.startswith(bare) and not prompt.startswith(bare):
        wrong = "with the generation prompt the template renders other messages than without"
    elif between and between.strip() and not header.strip():
        wrong = f"the template has no generation prompt, but writes {between!r} before every answer"
    elif prompt.startswith(bare) and answered.startswith(bare) and (other := _other_header(header, answered, bare)):
        wrong = f"the generation prompt is {header!r}, but the template begins answers with {other!r}"
    fix = (
        "mend the template's add_generation_prompt branch (model.chat_template: FILE) so that it ends as answers begin"
    )
    return judged("tokens/generation-prompt", wrong, f"answers start right after {header!r}", evidence, fix)


def _other_header(header: str, answered: str, bare: str) -> str:
    """Return what the template writes before an answer where the generation prompt parts from it; nothing if not.

    A generation prompt may go further than the template does before an answer (reasoning that the policy opens), but
    not another way.
    """
    before = answered.removeprefix(bare).partition(_MARK)[0]
    at = _parting(header, before)
    return before if at < len(header) and before[at:].strip() else ""


def _contexts(context: PreflightContext) -> Check:
    """What the sampler read is the template's rendering, whole, generation prompt included."""
    codec = context.codec
    evidence: dict[str, Any] = {}
    wrong = None
    for prompt, turns in context.drawn.turns:
        text = _template(codec, prompt.messages, generation=True)
        bare = _template(codec, prompt.messages, generation=False)
        header = text.removeprefix(bare) if text.startswith(bare) else ""
        context_ids = turns[0].context_ids
        shown = boundary(codec, context_ids, turns[0].completion_ids)
        if prompt.task not in evidence:
            evidence[prompt.task] = {
                "context_tokens": len(context_ids),
                "context_start": [t.text for t in read(codec, context_ids[:6])],
                "context_end": [t.text for t in shown.context_end],
                "completion_start": [t.text for t in shown.completion_start],
                "completion_end": [t.text for t in shown.completion_end],
            }
        read_text = str(codec.tokenizer.decode(list(context_ids), clean_up_tokenization_spaces=False))
        expected = codec.tokenizer.encode(text, add_special_tokens=False)
        plain = not codec.template.control_tokens_in(prompt.messages) and not codec.template.reads_the_clock
        if header and not _ends_with(read_text, header):
            wrong = (
                f"the prompt {prompt.id!r} reaches the sampler without its generation prompt: it ends with "
                f"{spelled(codec, context_ids[-4:])}, not with {header!r}; it was cut to "
                f"{len(context_ids)} of {len(expected)} tokens"
            )
            break
        if plain and list(context_ids) != list(expected) and read_text.lstrip() != text.lstrip():
            wrong = (
                f"the sampler reads {len(context_ids)} tokens for prompt {prompt.id!r} where the template gives "
                f"{len(expected)}; they part at token {_parting(context_ids, expected)}"
            )
            break
    fix = "cut long messages before they are rendered, never the rendered ids; leave long items out with tasks[].limit"
    return judged("tokens/context", wrong, "the sampler reads the rendered messages, whole", evidence, fix)


def _same_prompt(context: PreflightContext) -> Check:
    """Supervised and rollout prompts have identical ids."""
    codec = context.codec
    evidence: dict[str, Any] = {}
    compared, wrong = 0, None
    for name, prompts in context.prompts.items():
        if context.setup.tasks[name].demonstrates:
            continue
        for prompt in (p for p in prompts if _shown(context, p)):
            (pair,) = demonstrations(context, [prompt])
            compared += 1
            shown = boundary(codec, pair.context_ids, pair.completion_ids)
            if name not in evidence:
                evidence[name] = {
                    "rollout_context_end": [t.text for t in read(codec, prompt.token_ids[-6:])],
                    "sft_context_end": [t.text for t in shown.context_end],
                    "sft_completion_start": [t.text for t in shown.completion_start],
                    "sft_completion_end": [t.text for t in shown.completion_end],
                }
            if pair.context_ids != prompt.token_ids and wrong is None:
                at = _parting(pair.context_ids, prompt.token_ids)
                wrong = (
                    f"for prompt {prompt.id!r} the supervised stage reads {len(pair.context_ids)} tokens and rollouts "
                    f"{len(prompt.token_ids)}; they part at token {at}: "
                    f"{spelled(codec, pair.context_ids[at : at + 4]) or 'nothing'} against "
                    f"{spelled(codec, prompt.token_ids[at : at + 4]) or 'nothing'}"
                )
            wrong = wrong or _answer_differs(context, prompt, pair)
    right = f"supervised and rollout prompts have identical ids ({compared} compared)"
    if not compared:
        right = "no demonstration without an environment to compare"
    return judged("tokens/same-prompt", wrong, right, evidence, "render both with Codec.render and Codec.demonstration")


def _answer_differs(context: PreflightContext, prompt: Prompt, pair: TokenSequence) -> str | None:
    (answer,) = context.setup.tasks[prompt.task].oracle(prompt) or [""]
    got = context.codec.decode(pair.completion_ids)
    if "".join(answer.split()) not in "".join(got.split()):
        return f"the demonstration of {prompt.id!r} reads {got[:60]!r} where the oracle wrote {answer[:60]!r}"
    return None


def _made_once(context: PreflightContext) -> Check:
    """What the collector hands on is what the sampler generated, token for token."""
    drawn = [turn for _, turns in context.drawn.turns for turn in turns]
    sampled_pairs = {(turn.context_ids, turn.completion_ids) for turn in drawn}
    arrived = context.turns
    strange = [turn for turn in arrived if (turn.context_ids, turn.completion_ids) not in sampled_pairs]
    evidence: dict[str, Any] = {"turns": len(arrived), "changed": len(strange)}
    wrong = None
    if strange:
        near = _nearest(strange[0], drawn)
        wrong = (
            f"{len(strange)} of {len(arrived)} completions are not the tokens that were drawn: "
            f"{spelled(context.codec, near.completion_ids[-5:])} was drawn and "
            f"{spelled(context.codec, strange[0].completion_ids[-5:])} arrived"
        )
    fix = "hand the drawn ids on; never decode and tokenize again, append or cut on the way"
    return judged("tokens/made-once", wrong, "completions are exactly the tokens that were drawn", evidence, fix)


def _nearest(turn: Turn, drawn: Sequence[Turn]) -> Turn:
    same = [other for other in drawn if other.context_ids == turn.context_ids] or list(drawn)
    return max(same, key=lambda other: _parting(other.completion_ids, turn.completion_ids))


def _vocabulary(context: PreflightContext) -> Check:
    """Every id of the tokenizer has a row in the embedding."""
    embedding: Any = context.policy.base.get_input_embeddings()
    rows = int(embedding.weight.shape[0])
    size, stops = context.codec.vocab_size, sorted(context.codec.stop_ids)
    highest = max([size - 1, *stops])
    evidence = {"tokenizer": size, "embedding_rows": rows, "stop_ids": stops}
    wrong = None
    if highest >= rows:
        wrong = f"the tokenizer has ids up to {highest}, and the model's embedding only {rows} rows"
    fix = "use the model's own tokenizer, or resize the embedding and save the model before training"
    return judged("tokens/vocabulary", wrong, f"{size} ids fit {rows} embedding rows", evidence, fix)


def _round_trip(context: PreflightContext) -> Check:
    """The tokenizer that a checkpoint will hold is the one that the run trains with, token for token."""
    codec = context.codec
    evidence = {"class": type(codec.tokenizer).__name__, "probes": len(PROBES)}
    wrong = None
    with tempfile.TemporaryDirectory(prefix="levelhead-") as name:
        folder = Path(name)
        codec.save(folder)
        if not context.policy.lora:  # these files decide which class is loaded, and where generation stops
            context.policy.base.config.save_pretrained(str(folder))
            GenerationConfig(eos_token_id=sorted(codec.stop_ids)).save_pretrained(str(folder))
        try:
            again = load_saved_codec(context.recipe.model, folder)
            evidence["loaded_as"] = type(again.tokenizer).__name__
        except InputError as error:
            wrong = f"saved and loaded again, {str(error).removeprefix(f'{folder}: ')}"
    right = "saved and loaded again, the tokenizer gives the same tokens"
    fix = (
        "set model.tokenizer to a folder where it was saved as "
        "PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer), which is loaded as it is"
    )
    return judged("tokens/round-trip", wrong, right, evidence, fix)


def _ends_with(text: str, header: str) -> bool:
    if header.isspace():
        return text.endswith(header)
    return "".join(text.split()).endswith("".join(header.split()))


def _parting(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the first place at which two sequences differ."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
