"""One judge: how it is asked, what its verdicts come to, and what that has cost."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx2

from levelhead.diagnosis.notice import printable
from levelhead.recipe.judge import FunctionJudge, JudgeEndpoint
from levelhead.tasks.endpoint import ChatClient, EndpointError, Pace, ReplyCache
from levelhead.tasks.judges.forms import FORMS, PAIR_FORMS, VerdictForm
from levelhead.tasks.judges.questions import Asked, Question, calls_of
from levelhead.tasks.metering import Usage
from levelhead.tasks.threads import without_signals
from levelhead.usercode import load_object

Outcome = float | EndpointError | None
"""What asking for one verdict came to: a grade, none, or that the judge could not be asked."""
_EXCERPT = 80


class Member(ABC):
    """One judge of a panel.

    Attributes:
        title: Its name.
        concurrency: Calls under way at once.
        patience_s: How long its silence is waited out.
        usage: What its calls have cost so far.
        last_failure: The last reply without a grade.
    """

    def __init__(self, title: str, concurrency: int, patience_s: float = 0.0) -> None:
        self.title, self.concurrency, self.patience_s = title, concurrency, patience_s
        self.usage, self.last_failure = Usage(), ""

    @abstractmethod
    async def outcomes(
        self, questions: Sequence[Asked], patience_s: float | None = None, timeout_s: float | None = None
    ) -> list[Outcome]:
        """Return what asking for each grade came to, in order; nothing that was answered is lost to what was not.

        Args:
            questions: What to grade.
            patience_s: How long to wait for silence to end, if less than the recipe says.
            timeout_s: Longest time for one attempt, if less than the recipe says.

        Raises:
            InputError: What the recipe names cannot be used.
        """

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:  # noqa: ARG002
        """Return what some tokens cost; ``None`` where there are no prices."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of files; they are opened again when they are needed."""


class EndpointMember(Member):
    """A judge behind a chat endpoint.

    Args:
        section: Its section of the recipe.
        where: The section's place in the recipe, for messages.
        salt: Tells its calls apart from those of other judges with a model of the same name, in the cache they share.
        transport: Another way to the endpoint than the network, for tests.
        pairs: Whether it compares two answers instead of grading one.

    Raises:
        InputError: The cache of replies cannot be opened, or the parser is not there.
    """

    def __init__(
        self,
        section: JudgeEndpoint,
        where: str,
        salt: str = "",
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        pairs: bool = False,
    ) -> None:
        super().__init__(section.title, section.concurrency, section.patience_s)
        self.section = section
        self._where, self._salt, self._transport = where, salt, transport
        self._form = _form(section, where, PAIR_FORMS if pairs else FORMS)
        if self._form.parser is not None and "{mark}" not in self._form.told:
            self.usage.tell(
                f"{where}.parser {section.parser} takes a reply alone, so that an answer which the judge quotes may "
                "give itself a grade; take a second argument, the mark that the judge is told to put into its verdict"
            )
        self._key = f"{section.base_url.rstrip('/')}\0{section.model}"
        self._pace = Pace(section)
        self._cache = self._open()

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what some tokens cost at the recipe's prices."""
        return self.section.cost(prompt_tokens, completion_tokens)

    async def outcomes(
        self, questions: Sequence[Asked], patience_s: float | None = None, timeout_s: float | None = None
    ) -> list[Outcome]:
        """Return what asking for each grade came to, in order."""
        bounds = {"patience_s": patience_s, "timeout_s": timeout_s}
        less = {key: min(value, getattr(self.section, key)) for key, value in bounds.items() if value is not None}
        section = self.section.model_copy(update=less)
        async with ChatClient(section, self.usage, self._cache, self._transport, self._where, self._pace) as client:
            calls = calls_of(questions)
            ends = await asyncio.gather(*(self._grades(client, call) for call in calls), return_exceptions=True)
        outcomes: dict[Asked, Outcome] = {}
        for call, end in zip(calls, ends, strict=True):
            if isinstance(end, BaseException) and not isinstance(end, EndpointError):
                raise end
            outcomes |= zip(call, [end] * len(call) if isinstance(end, EndpointError) else end, strict=True)
        return [outcomes[question] for question in questions]

    def close(self) -> None:
        """Close the cache; it is opened again if the judge is used again."""
        if self._cache is not None:
            self._cache.close()
            self._cache = self._open()

    def _open(self) -> ReplyCache | None:
        return ReplyCache(self.section.cache, self._where) if self.section.cache else None

    async def _grades(self, client: ChatClient, call: Sequence[Asked]) -> list[float | None]:
        """Return the grade in [0, 1] of each question of one call, ``None`` where the judge would not give one."""
        question, structured = call[0], self.section.structured
        others = [one for one in call[1:] if isinstance(one, Question)]
        if others and isinstance(question, Question):
            shown = question.show_beside(others, self._form, self._key, structured=structured)
        else:
            shown = question.show(self._form, self._key)
        form = self._form.asked(structured=structured, odds=self.section.logprobs, several=bool(others))
        grades: list[float | None] = [None] * len(call)
        for attempt in range(self.section.attempts):
            # Asked again the same question at temperature 0 it would say the same.
            sample, temperature = self._salt + f"judge/{question.id}/{attempt}", 0.7 if attempt else 0.0
            reply = await client.ask(shown.messages, temperature, sample, form=form, occasion=question.occasion)
            grades = [
                now if before is None else before
                for before, now in zip(grades, self._form.grades(reply, shown.marks, shown.material), strict=True)
            ]
            if None not in grades:
                break
            text = client.quote(reply.text, _EXCERPT) or ("nothing beside its thoughts" if reply.cut else "")
            self.last_failure = text + (" [cut off]" if reply.cut else "")
        return grades


class FunctionMember(Member):
    """A judge that is a Python function of the user's.

    Args:
        section: Its section of the recipe.
        where: The section's place in the recipe, for messages.

    Raises:
        InputError: There is no such function.
    """

    def __init__(self, section: FunctionJudge, where: str) -> None:
        super().__init__(section.title, section.concurrency)
        self.section = section
        self._function = load_function(section.path, f"{where}.path")

    async def outcomes(
        self,
        questions: Sequence[Asked],
        patience_s: float | None = None,  # noqa: ARG002
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> list[Outcome]:
        """Return the function's grades, in order; one that raises, or takes too long, has given none."""
        slots = asyncio.Semaphore(self.section.concurrency)

        async def grade(question: Asked) -> float | None:
            async with slots:
                began = time.monotonic()
                value = await self._call(question)
                self.usage.calls += 1
                self.usage.took(time.monotonic() - began)
                return value

        return list(await asyncio.gather(*map(grade, questions)))

    async def _call(self, question: Asked) -> float | None:
        texts = question.texts()
        try:
            async with asyncio.timeout(self.section.timeout_s):
                if inspect.iscoroutinefunction(self._function):
                    value = await self._function(**texts)
                else:
                    value = await asyncio.to_thread(without_signals(partial(self._function, **texts)))
        except TimeoutError:
            self.last_failure = f"no grade within {self.section.timeout_s:g} s"
            return None
        except Exception as error:
            self.last_failure = printable(f"{type(error).__name__}: {error}", _EXCERPT)
            return None
        grade = as_grade(value)
        if grade is None:
            self.last_failure = printable(repr(value), _EXCERPT)
        return grade


def load_function(entry: str, key: str) -> Callable[..., Any]:
    """Return the user's function that ``file.py:name`` names.

    Raises:
        InputError: There is none.
    """
    function: Callable[..., Any] = load_object(entry, key, "function", inspect.isfunction)
    return function


def as_grade(value: object) -> float | None:
    """Return what the user's code gave as a grade in [0, 1]; ``None`` for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    number = float(value)
    return number if math.isfinite(number) and 0 <= number <= 1 else None


def _form(section: JudgeEndpoint, where: str, forms: Mapping[str, VerdictForm]) -> VerdictForm:
    """The form of a judge's verdicts: one of ours, or as a function of the user's reads them."""
    form = forms[section.verdict]
    if section.parser is None:
        return form
    parser = load_function(section.parser, f"{where}.parser")
    marks = takes_mark(parser)

    def read(text: str, mark: str) -> float | None:
        try:
            return as_grade(parser(text, mark) if marks else parser(text))
        except Exception:
            return None

    instruction = form.told if marks else form.told.replace("[{mark}]", "")
    return replace(form, told=instruction, parser=read)


def takes_mark(parser: Callable[..., Any]) -> bool:
    """Whether a parser of the user's is called with the mark as well as with the reply."""
    try:
        inspect.signature(parser).bind("", "")
    except TypeError:
        return False
    return True
