"""What the operators do when they ask a model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from levelhead.contrib.workflow.answers import extract_program, run_tests
from levelhead.contrib.workflow.answers.quantity import read_quantity, same_value
from levelhead.contrib.workflow.endpoint import templates
from levelhead.contrib.workflow.interpret import Path, Verdict
from levelhead.contrib.workflow.operators import OPERATORS
from levelhead.contrib.workflow.problems.base import Problem
from levelhead.records import Message
from levelhead.tasks.endpoint import ChatClient
from levelhead.tasks.endpoint.verdicts import read_letter, read_verdict
from levelhead.tasks.numbers import final_answer
from levelhead.tasks.sandbox import Bench, ProgramResult, run_program
from levelhead.tasks.text_match import normalize_answer

_LONGEST_NOTE = 2000


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer so far: its text, empty where an operator came to nothing."""

    text: str


class Asking:
    """A backend whose operators ask an endpoint, for one workflow on one problem."""

    def __init__(self, client: ChatClient, temperature: float, problem: Problem, sample: int, bench: Bench) -> None:
        """Set the problem, which sample of the workflow's runs on it this is, and where programs are run."""
        self._client = client
        self._temperature = temperature
        self._problem = problem
        self._sample = sample
        self._bench = bench
        self._drafts: dict[Path, Draft] = {}
        self.tokens = 0
        self.calls = 0

    def first(self) -> Draft:
        """Return the first draft in reading order, whichever branch was done first."""
        return self._drafts[min(self._drafts)]

    async def draft(self, operator: str, path: Path, before: Draft | None) -> Draft:
        """Write a draft."""
        self.calls += 1
        self._drafts[path] = await self._draft(operator, path, before)
        return self._drafts[path]

    async def _draft(self, operator: str, path: Path, before: Draft | None) -> Draft:
        text = before.text if before else None
        if operator == "Programmer":
            return await self._program(path, text)
        make = {
            "Custom": templates.custom,
            "AnswerGenerate": templates.answer_generate,
            "CustomCodeGenerate": templates.code_generate,
        }[operator]
        return Draft(await self._ask(make(self._problem, text), path))

    async def judge(self, operator: str, path: Path, draft: Draft) -> Verdict:
        """Say whether a draft has a fault; an empty draft has one, without a call."""
        self.calls += 1
        if not draft.text.strip():
            return Verdict(True, operator, "there is no answer yet")
        if operator == "Review":
            said = await self._ask(templates.review(self._problem, draft.text), path, temperature=0.0)
            return Verdict(read_verdict(said, draft.text) is False, operator, said[:_LONGEST_NOTE])
        if self._problem.domain == "code":
            return await self._test_code(path, draft)
        return await self._test_answer(path, draft)

    async def revise(self, path: Path, draft: Draft, verdict: Verdict) -> Draft:
        """Write a better draft."""
        self.calls += 1
        return Draft(await self._ask(templates.revise(self._problem, draft.text, verdict.note), path))

    async def reduce(self, path: Path, draft: Draft) -> Draft:
        """Reduce a draft to its final form."""
        self.calls += 1
        return Draft(await self._ask(templates.reduce(self._problem, draft.text), path, temperature=0.0))

    async def vote(self, operator: str, path: Path, drafts: Sequence[Draft]) -> Draft:
        """Choose among drafts: by agreement, or by asking several times, the order shuffled each time.

        A reply that chooses no draft, or several, is no vote; without any vote the first draft stands.
        """
        self.calls += 1
        if operator == "ScEnsemble":
            return most_agreed(drafts, self._problem.domain)
        asks = OPERATORS[operator].calls
        said = await asyncio.gather(*(self._one_vote(path, i, drafts) for i in range(asks)))
        votes = Counter(vote for vote in said if vote is not None)
        if not votes:
            return drafts[0]
        best = max(votes.values())
        return drafts[min(i for i, count in votes.items() if count == best)]

    async def _one_vote(self, path: Path, turn: int, drafts: Sequence[Draft]) -> int | None:
        order = list(range(len(drafts)))
        random.Random(f"{self._sample}/{path}/{turn}").shuffle(order)
        asked = templates.choose(self._problem, [drafts[i].text for i in order])
        said = await self._ask(asked, (*path, turn), temperature=0.0)
        names = {templates.letter(place): i for place, i in enumerate(order)}
        letter = read_letter(said, names, [draft.text for draft in drafts])
        return None if letter is None else names[letter]

    async def _program(self, path: Path, before: str | None) -> Draft:
        """Write a program and run it; a program that fails is written once more, with its error at hand."""
        error: str | None = None
        for attempt in range(OPERATORS["Programmer"].calls):
            said = await self._ask(templates.programmer(self._problem, before, error), (*path, attempt))
            source = extract_program(said, self._problem.entry_point or "main")
            result = await self._bench.run(run_program, f"{self._problem.preamble}{source}")
            if self._problem.domain == "code":
                if result.status == "ok":
                    return Draft(f"```python\n{source}\n```")
            elif result.status == "ok" and result.stdout.strip():
                return Draft(f"#### {result.stdout.strip().splitlines()[-1]}")
            error = _why(result)
        return Draft("")

    async def _test_code(self, path: Path, draft: Draft) -> Verdict:
        said = await self._ask(templates.write_tests(self._problem), path, temperature=0.0)
        name = self._problem.entry_point or ""
        tests = "\n".join(line for line in extract_program(said, name).splitlines() if line.startswith("assert "))
        if not tests:
            return Verdict(False, "Test", "no test could be written")
        source = f"{self._problem.preamble}{extract_program(draft.text, name)}"
        run = await self._bench.run(run_tests, source, tests, name)
        return Verdict(run.level < 1.0, "Test", f"{run.passed} of {run.total} tests pass. {run.note}"[:_LONGEST_NOTE])

    async def _test_answer(self, path: Path, draft: Draft) -> Verdict:
        said = await self._ask(templates.write_check(self._problem, draft.text), path, temperature=0.0)
        result = await self._bench.run(run_program, extract_program(said, "main"))
        # A check that does not run says nothing about the answer.
        fault = result.status == "ok" and "FAIL" in result.stdout and "PASS" not in result.stdout
        return Verdict(fault, "Test", f"a check printed: {result.stdout.strip() or _why(result)}"[:_LONGEST_NOTE])

    async def _ask(self, messages: list[Message], path: Path, temperature: float | None = None) -> str:
        sample = f"{self._sample}/{'.'.join(map(str, path))}"
        reply = await self._client.ask(messages, self._temperature if temperature is None else temperature, sample)
        self.tokens += reply.tokens
        return reply.text


def most_agreed(drafts: Sequence[Draft], domain: str) -> Draft:
    """Return a draft of the answer that most drafts agree on; of equally many, the first.

    Numbers agree by value, units converted; words once normalised; programs to the letter.  Empty drafts do not vote.
    """
    groups: list[list[Draft]] = []
    for draft in drafts:
        group = next((group for group in groups if _agree(group[0], draft, domain)), None)
        if not draft.text.strip():
            continue
        if group is None:
            groups.append([draft])
        else:
            group.append(draft)
    return max(groups, key=len)[0] if groups else drafts[0]


def _agree(one: Draft, other: Draft, domain: str) -> bool:
    if domain == "code":
        return one.text.split() == other.text.split()
    first, second = (_stated(draft.text) for draft in (one, other))
    if domain == "math":
        a, b = read_quantity(first), read_quantity(second)
        if a is not None and b is not None:
            return same_value(a, b)
    return normalize_answer(first) == normalize_answer(second)


def _stated(text: str) -> str:
    stated = final_answer(text)
    return (stated if stated is not None else text.strip().rsplit("\n", 1)[-1]).strip()


def _why(result: ProgramResult) -> str:
    refusal = result.note if result.status == "refused" else ""
    return refusal or result.stderr.strip()[-500:] or f"the program printed nothing ({result.status})"
