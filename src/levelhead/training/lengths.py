"""Prompts and demonstrations that the model's context has no room for: refused, left out, or cut on the left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from levelhead.errors import InputError
from levelhead.message import Message, Phrase
from levelhead.policy.policy import Policy
from levelhead.recipe import Recipe
from levelhead.records import Event, Prompt
from levelhead.tasks.base import Split, Task, TrimsPrompts
from levelhead.text.shorten import shortened
from levelhead.text.thoughts import clash, holds_thought

SPLITS: tuple[Split, ...] = ("train", "eval")
_WAY_OUT = (
    "shorten the item, leave it out, choose a model with a longer context, or, for rows of your own, set "
    "tasks[].overlong to drop or truncate_left"
)

Kind = Literal["error", "drop", "truncate_left"]
OVERLONG = Message(
    "{count} of {all} prompts have no room in the context (of {room:,} tokens) and are {how}: {train} to train on, "
    "{held_out} held out",
    "{all} 道题中有 {count} 道在上下文（{room:,} 个 token）中放不下，已{how}：训练题 {train} 道，留出题 {held_out} 道",
)
HOW = {
    "drop": Message("left out", "去掉"),
    "truncate_left": Message("cut on the left", "从左侧截短"),
}


@dataclass(frozen=True, slots=True)
class Overlong:
    """What became of the prompts of a task that the context has no room for.

    Attributes:
        kind: ``drop`` or ``truncate_left``.
        train: How many of those to train on.
        eval: How many of those held out.
        prompts: How many prompts the task had.
        room: Tokens that a prompt may have.
    """

    kind: Kind
    train: int
    eval: int
    prompts: int
    room: int

    def __str__(self) -> str:
        return self.text()

    def text(self) -> Phrase:
        """Return what became of them, in words."""
        numbers = {"all": self.prompts, "room": self.room, "train": self.train, "held_out": self.eval}
        return OVERLONG(count=self.train + self.eval, how=HOW[self.kind](), **numbers)

    def event(self, task: str) -> Event:
        """Return the event that reports it."""
        evidence = {"task": task, "train": self.train, "held_out": self.eval, "prompts": self.prompts}
        return Event(0, "overlong-prompts", "info", Phrase(f"{task}: ", f"{task}：") + self.text(), None, evidence)


def fit_prompts(recipe: Recipe, tasks: Mapping[str, Task], policy: Policy) -> dict[str, Overlong]:
    """See to it that every prompt and demonstration has room in the context, as ``tasks[].overlong`` says.

    Raises:
        InputError: One has none and the recipe says ``error``, nothing is left of a side, a task's
            ``keep_special_tokens`` cannot count as text, or its tools cannot be called through the template.
    """
    result: dict[str, Overlong] = {}
    for section, (name, task) in zip(recipe.tasks, tasks.items(), strict=True):
        policy.codec.refuse_special(getattr(section, "keep_special_tokens", ()), f"tasks: {name}: keep_special_tokens")
        kind: Kind = getattr(section, "overlong", "error")
        fitting = _Fitting(recipe, name, task, policy, kind)
        if task.tools is not None:
            task.tools.learn_format(policy.codec, name, fitting.room)
        fitted: dict[str, Prompt | None] = {}
        counts = dict.fromkeys(SPLITS, 0)
        total = 0
        for split in SPLITS:
            for prompt in task.prompts(split, 0):
                total += 1
                fit = fitting.of(prompt, split)
                if fit is not prompt:
                    fitted[prompt.id] = fit
                    counts[split] += 1
        if fitted and isinstance(task, TrimsPrompts):
            task.trim(fitted)
            result[name] = Overlong(kind, counts["train"], counts["eval"], total, fitting.room)
    return result


class _Fitting:
    """Fits the prompts of a task into the context.

    Args:
        recipe: The whole recipe.
        name: The task's name.
        task: The task.
        policy: With context and codec.
        kind: Its ``overlong``.
    """

    def __init__(self, recipe: Recipe, name: str, task: Task, policy: Policy, kind: Kind) -> None:
        budgets = [recipe.eval.sampling.max_new_tokens]
        if recipe.grpo is not None:
            budgets.append(recipe.grpo.sampling.max_new_tokens)
        self._name, self._task, self._policy, self._kind = name, task, policy, kind
        self._budget = max(budgets)
        self.room = policy.context - self._budget
        self._demonstrates = recipe.sft is not None and not task.demonstrates
        self._bound = _LengthBound(policy)

    def of(self, prompt: Prompt, split: Split) -> Prompt | None:
        """Return the prompt, one that is cut, or ``None`` where it is left out."""
        length = self._bound.of(prompt)
        if length is None or length > self.room:
            length = len(self._policy.codec.render(prompt.messages, prompt.chat))
        answer = self._answer_tokens(prompt, length) if self._demonstrates and split == "train" else 0
        context = self._policy.context
        if length <= self.room and length + answer <= context:
            if self._demonstrates and split == "train":
                self._refuse_clash(prompt)
            return prompt
        if self._kind == "drop":
            return None
        if self._kind == "truncate_left" and answer < context:
            room = min(self.room, context - answer)
            messages = shortened(self._policy.codec, prompt.messages, prompt.chat, room)
            if messages is not None:
                return replace(prompt, messages=messages)
            raise InputError(
                f"tasks: {self._name}: prompt {prompt.id!r} cannot be cut to the {room:,} tokens that the context has "
                "room for, whatever is cut on the left of it; leave it out with tasks[].overlong: drop"
            )
        if length > self.room:
            raise InputError(
                f"tasks: {self._name}: prompt {prompt.id!r} has {length} tokens; with max_new_tokens "
                f"{self._budget} the model's context of {context} leaves room for {self.room}: {_WAY_OUT}"
            )
        raise InputError(
            f"tasks: {self._name}: the demonstration for prompt {prompt.id!r} has {length + answer} tokens, more than "
            f"the model's context of {context}: {_WAY_OUT}"
        )

    def _refuse_clash(self, prompt: Prompt) -> None:
        """Refuse an answer that thinks behind a prompt that has closed its thought: nothing like it is ever sampled."""
        for answer in filter(holds_thought, self._task.oracle(prompt) or ()):
            rendered = self._policy.codec.template.render(prompt.messages, generation_prompt=True, options=prompt.chat)
            if clash(rendered.text, answer):
                raise InputError(
                    f"tasks: {self._name}: the generation prompt closes an empty thought, and the perfect answer to "
                    f"prompt {prompt.id!r} thinks: {answer[:40]!r}; let the template open thoughts "
                    "(model.chat_template_kwargs: {enable_thinking: true}), or leave them out of the answers"
                )

    def _answer_tokens(self, prompt: Prompt, length: int) -> int:
        """Return the tokens of a demonstration's completion; 0 where it has room without being tokenized.

        No answer has more tokens than bytes, so that few have to be tokenized to know that they fit.
        """
        most = self._task.oracle_bytes(prompt)
        if most is not None and length + most < self._policy.context:
            return 0
        answers = self._task.oracle(prompt)
        if not answers or length + len(answers[0].encode()) < self._policy.context:
            return 0
        return len(self._policy.codec.demonstration(prompt.messages, answers[0], prompt.chat).completion_ids)


class _LengthBound:
    """How many tokens prompts have at most, told without rendering and tokenizing each of them.

    A text has no more tokens than bytes, and a template writes each message's text once and around it what it writes
    around others of the same role.

    Args:
        policy: With the codec that renders.
    """

    def __init__(self, policy: Policy) -> None:
        self._codec = policy.codec
        self._around: dict[tuple[str, ...], int] = {}

    def of(self, prompt: Prompt) -> int | None:
        """Return the bound; ``None`` where more than roles and texts is rendered."""
        contents = [message.get("content") for message in prompt.messages]
        if any(set(message) != {"role", "content"} for message in prompt.messages):
            return None
        if prompt.chat.tools or prompt.chat.template_kwargs:
            return None
        texts = [content for content in contents if isinstance(content, str)]
        if len(texts) != len(contents):
            return None
        roles = tuple(str(message["role"]) for message in prompt.messages)
        if roles not in self._around:
            rendered = self._codec.template.render(prompt.messages, generation_prompt=True).text
            self._around[roles] = len(rendered.encode()) - sum(len(text.strip().encode()) for text in texts)
        return self._around[roles] + sum(len(text.encode()) for text in texts)
