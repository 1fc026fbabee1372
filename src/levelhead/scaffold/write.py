"""The files of a new project: recipe, rewards, test, and a chat template where the model has none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from levelhead.diagnosis.verdict import FEW
from levelhead.errors import InputError
from levelhead.recipe import parse
from levelhead.recipe.shipped import refuse_existing, write_new
from levelhead.recipe.tasks import Function
from levelhead.scaffold.columns import Kind, answer_column, example_of, likely_kind, prompt_column
from levelhead.scaffold.model import PRESETS, TEMPLATE, Fit, ModelFacts, fit, look_at
from levelhead.scaffold.rewards import NAMES, SYSTEM, reward_file, test_file
from levelhead.tasks.function.examples import Example, make_examples
from levelhead.tasks.function.sources import load_table
from levelhead.tasks.splits import split_by_group
from levelhead.terminal import counted

GROUP_SIZE = 8
"""Rollouts to a prompt, where data and machine allow it."""
LOOKED_AT = 200
"""Rows whose prompts and answers are measured."""
_SHIPPED_SCALE: dict[str, Any] = {"batch_size": 32, "learning_rate": 3e-4, "dtype": "float32", "steps": 50}
ADAPTER_RATE = 1e-5
"""Learning rate of an adapter."""
_SCALE: dict[str, Any] = {"batch_size": 64, "learning_rate": 1e-6, "dtype": "auto", "steps": 200}


@dataclass(frozen=True, slots=True)
class InitOptions:
    """What the user says of the project.

    Attributes:
        name: Of the run, and of the recipe's file.
        model: Preset, folder, or name on the hub.
        data: A data file.
        reward: A kind, ``FILE.py:function``, or ``None`` to go by the answers.
        prompt: Column of the prompts, where it is said.
        answer: Column of the right answers, where it is said.
        folder: Where the files go.
        gpu: Memory of the GPU that will train; this machine's device unless given.
    """

    name: str
    model: str
    data: str
    reward: str | None = None
    prompt: str | None = None
    answer: str | None = None
    folder: Path = Path()
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The files that would be written, and what they rest on.

    Attributes:
        files: Text by path; the recipe first.
        prompt: Column of the prompts.
        answer: Column of the right answers.
        reward: The reward function, as the recipe names it.
        rows: Rows of the data.
        model: What is known of the model.
        memory: What the run takes of the machine's memory, in words; empty for a model that ships.
    """

    files: Mapping[Path, str]
    prompt: str
    answer: str | None
    reward: str
    rows: int
    model: ModelFacts
    memory: str = ""

    def write(self) -> None:
        """Write all files, or none.

        Raises:
            InputError: One is there already, or cannot be written.
        """
        write_new(dict(self.files))


def plan(options: InitOptions) -> Plan:
    """Look at data and model, and say what is to be written; writes nothing.

    Raises:
        InputError: Data, columns, reward or model do not fit, or a file is there already.
    """
    recipe_file = options.folder / f"{options.name}.yaml"
    refuse_existing([recipe_file])
    table = load_table(Function(kind="function", path=options.data), None)
    rows = [record.values for record in table.records]
    prompt = prompt_column(rows, options.prompt, options.data)
    answer = answer_column(rows, options.answer, prompt, options.data)
    section = Function(kind="function", path=options.data, prompt=prompt, oracle=answer)
    examples = make_examples(table, section)
    answers = [example.oracle or "" for example in examples[:LOOKED_AT]] if answer else []
    kind, reward = _reward(options, answers)
    oracle = None if kind == "json" and not all(map(_is_object, answers)) else answer
    section = section.model_copy(update={"oracle": oracle, "system": _system(kind, examples)})
    examples = make_examples(table, section)
    split_by_group(examples, lambda example: example.key, section.eval_fraction)
    files: dict[Path, str] = {}
    if kind is not None:
        module = f"{_module(options.name)}_rewards"
        reward = f"{(options.folder / module).as_posix()}.py:{NAMES[kind]}"
        files[options.folder / f"{module}.py"] = reward_file(options.name, kind, answer)
        files[options.folder / f"test_{module}.py"] = test_file(module, kind, answer, example_of(answers, kind))
    refuse_existing(files)  # before the model, whose tokenizer takes seconds
    facts = look_at(options.model, examples, answers if kind in ("number", "contains", None) else [])
    template = None
    if not facts.template:
        template = options.folder / f"{options.name}.jinja"
        files[template] = TEMPLATE
    prompts = len({example.key for example in examples})
    memory, held_out = Fit({"grpo.group_size": _group_size(options, prompts)}), _held_out(prompts)
    recipe = _recipe(options, section, reward, facts, template, held_out, memory)
    resolved = parse(recipe, source=f"{options.name}.yaml")
    if options.model not in PRESETS and not facts.note and template is None:
        planned = fit(resolved, options.gpu, facts.longest_prompt)
        memory = Fit({**memory.settings, **planned.settings}, planned.note)
        recipe = _recipe(options, section, reward, facts, template, held_out, memory)
        parse(recipe, source=f"{options.name}.yaml")
    return Plan({recipe_file: recipe, **files}, prompt, answer, reward, len(rows), facts, memory.note)


def _system(kind: Kind | None, examples: Sequence[Example]) -> str | None:
    """Return the system message that asks for the form of an answer; none where prompts bring one of their own."""
    own = any(message["role"] in ("system", "developer") for example in examples for message in example.messages)
    return SYSTEM[kind] if kind is not None and not own else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _reward(options: InitOptions, answers: list[str]) -> tuple[Kind | None, str]:
    """Return the kind of reward to write, or the function of the user's own file."""
    reward = options.reward
    if reward is not None and ".py" in reward:
        file, _, function = reward.partition(":")
        if not function or not Path(file).is_file():
            raise InputError(f"--reward {reward}: give FILE.py:function, a file that is there")
        return None, reward
    if reward is not None and reward not in NAMES:
        raise InputError(f"--reward {reward}: give one of {', '.join(NAMES)}, or FILE.py:function")
    if reward == "json":
        return "json", ""
    if not answers:
        raise InputError(
            f"{options.data}: no column of right answers; name it with --answer, or give --reward json or "
            "FILE.py:function"
        )
    kind: Kind = next((kind for kind in NAMES if kind == reward), likely_kind(answers))
    return kind, ""


def _recipe(
    options: InitOptions,
    section: Function,
    reward: str,
    facts: ModelFacts,
    template: Path | None,
    held_out: str,
    memory: Fit,
) -> str:
    scale = _scale(options)
    source = "preset" if options.model in PRESETS else "name"
    model = {source: options.model, "dtype": scale["dtype"], **memory.under("model.")}
    rate = ADAPTER_RATE if "lora" in model else scale["learning_rate"]
    sampling = {"max_new_tokens": facts.room}
    if template is not None:
        model["chat_template"] = template.as_posix()
    context = f" of {facts.context:,}" if facts.context else ""
    prompts = f"the longest prompt takes {facts.longest_prompt:,}{context} tokens" if facts.longest_prompt else ""
    path = f"{(options.folder / options.name).as_posix()}.yaml"
    right = f"    oracle: {_scalar(section.oracle)}            # the right answer: the check scores it"
    overlong = f"    overlong: drop           # {counted(facts.overlong, 'prompt')} without room in the context"
    lines = [
        f"# Written by levelhead init: `levelhead check {path}` proves that it fits together,",
        f"# `levelhead train {path}` trains. Keys that are left out have sensible values.",
        f"# Memory: {memory.note}; `levelhead check {path} --plan` shows its parts." if memory.note else "",
        f"name: {_scalar(options.name)}",
        "seed: 0",
        f"model: {_scalar(model)}",
        "tasks:",
        "  - kind: function",
        f"    path: {_scalar(options.data)}",
        f"    prompt: {_scalar(section.prompt)}",
        f"    system: {_scalar(section.system)}" if section.system else "",
        right if section.oracle else "",
        "" if facts.tools else "    tools: null              # the model's chat template shows no tools",
        overlong if facts.overlong else "",
        f"    rewards: [{_scalar(reward)}]",
        held_out,
        "# sft: {steps: 20}              # take away the '#' to show right answers first" if section.oracle else "",
        "grpo:",
        f"  steps: {scale['steps']}                      # or data_epochs: 1, a pass over the data",
        f"  batch_size: {scale['batch_size']}                 # rollouts a step, group_size of them to a prompt",
        *(f"  {key}: {_scalar(value)}" for key, value in memory.under("grpo.").items()),
        f"  sampling: {_scalar(sampling | memory.under('grpo.sampling.'))}   # {prompts or 'room for an answer'}",
        f"  optimizer: {{learning_rate: {rate:g}, warmup_steps: 5}}",
        f"eval: {_scalar({'every': 50, **memory.under('eval.'), 'sampling': sampling})}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _scale(options: InitOptions) -> Mapping[str, Any]:
    return _SHIPPED_SCALE if options.model in PRESETS else _SCALE


def _group_size(options: InitOptions, prompts: int) -> int:
    """The group size that the data ask for: larger where a step would else take one prompt for two groups."""
    batch, size = _scale(options)["batch_size"], GROUP_SIZE
    while batch // size > prompts * (1 - _held_out_share(prompts)) and size < batch:
        size *= 2
    return size


def _held_out_share(prompts: int) -> float:
    """The share of the prompts to hold out: more than the usual one, where that would be too few to judge by.

    Two thirds more than are needed, because prompts fall on either side by chance, and never more than half of them.
    """
    usual: float = Function.model_fields["eval_fraction"].default
    return max(usual, min(math.ceil(100 * 5 / 3 * FEW / prompts) / 100, 0.5))


def _held_out(prompts: int) -> str:
    """The line that holds out another share than the usual one."""
    fraction = _held_out_share(prompts)
    if fraction == Function.model_fields["eval_fraction"].default:
        return ""
    return (
        f"    eval_fraction: {fraction:g}         # about {round(fraction * prompts)} of {prompts} prompts are held out"
    )


def _scalar(value: Any) -> str:
    """A value as it stands in YAML, in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_scalar(item)}" for key, item in value.items()) + "}"
    text = yaml.safe_dump(value, allow_unicode=True, width=10_000, default_flow_style=True).strip()
    text = text.removesuffix("...").strip()
    return json.dumps(value, ensure_ascii=False) if any(c in text for c in ",[]{}#:") and text[0] not in "'\"" else text


def _module(name: str) -> str:
    """A name that Python can import."""
    word = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    return f"_{word}" if word[:1].isdigit() else word
