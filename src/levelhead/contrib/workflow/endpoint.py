"""The ``endpoint`` executor: workflows run by real calls to an OpenAI-compatible chat endpoint."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import httpx2

from levelhead.contrib.workflow import prompts
from levelhead.contrib.workflow.answers import grade, stated_answer
from levelhead.contrib.workflow.interpret import Job, Outcome, Path, Verdict, run
from levelhead.contrib.workflow.operators import OPERATORS
from levelhead.contrib.workflow.problems import Problem
from levelhead.contrib.workflow.quantity import read_quantity, same_value
from levelhead.metrics import held_out
from levelhead.recipe.workflow import EndpointExecutor, SandboxLimits
from levelhead.records import ChatMessage
from levelhead.tasks.endpoint import BudgetError, ChatClient, Pace, ReplyCache
from levelhead.tasks.endpoint.verdicts import read_letter, read_verdict
from levelhead.tasks.metering import Usage
from levelhead.tasks.sandbox import Bench, ProgramResult, find_wall, run_program
from levelhead.tasks.sandbox.programs import extract_program, run_tests
from levelhead.tasks.text_match import normalize_answer
from levelhead.waiting import all_of

_LONGEST_NOTE = 2000


class Asking:
    """A backend whose operators ask an endpoint, for one workflow on one problem.

    A draft is the answer's text, empty where an operator came to nothing.
    """

    def __init__(self, client: ChatClient, temperature: float, problem: Problem, sample: int, bench: Bench) -> None:
        """Set the problem, which sample of the workflow's runs on it this is, and where programs are run."""
        self._client = client
        self._temperature = temperature
        self._problem = problem
        self._sample = sample
        self._bench = bench
        self._drafts: dict[Path, str] = {}
        self.tokens = 0
        self.calls = 0

    def first(self) -> str:
        """Return the first draft in reading order, whichever branch was done first."""
        return self._drafts[min(self._drafts)]

    async def draft(self, operator: str, path: Path, before: str | None) -> str:
        """Let the model answer the problem as an operator does."""
        self.calls += 1
        self._drafts[path] = await self._draft(operator, path, before)
        return self._drafts[path]

    async def _draft(self, operator: str, path: Path, before: str | None) -> str:
        if operator == "Programmer":
            return await self._program(path, before)
        return await self._ask(prompts.draft(operator, self._problem, before), path)

    async def judge(self, operator: str, path: Path, draft: str) -> Verdict:
        """Say whether a draft has a fault; an empty draft has one, without a call."""
        self.calls += 1
        if not draft.strip():
            return Verdict(True, operator, "there is no answer yet")
        if operator == "Review":
            reply = await self._ask(prompts.review(self._problem, draft), path, temperature=0.0)
            return Verdict(read_verdict(reply, draft) is False, operator, reply[:_LONGEST_NOTE])
        if self._problem.domain == "code":
            return await self._test_code(path, draft)
        return await self._test_answer(path, draft)

    async def revise(self, path: Path, draft: str, verdict: Verdict) -> str:
        """Let the model improve a draft by its review."""
        self.calls += 1
        return await self._ask(prompts.revise(self._problem, draft, verdict.note), path)

    async def reduce(self, path: Path, draft: str) -> str:
        """Reduce a draft to its final form."""
        self.calls += 1
        return await self._ask(prompts.reduce(self._problem, draft), path, temperature=0.0)

    async def vote(self, operator: str, path: Path, drafts: Sequence[str]) -> str:
        """Choose among drafts: by agreement, or by asking several times, the order shuffled each time.

        A reply that chooses no draft, or several, is no vote; without any vote the first draft stands.
        """
        self.calls += 1
        if operator == "ScEnsemble":
            return most_agreed(drafts, self._problem.domain)
        asks = OPERATORS[operator].calls
        replies = await all_of(self._one_vote(path, i, drafts) for i in range(asks))
        votes = Counter(vote for vote in replies if vote is not None)
        if not votes:
            return drafts[0]
        best = max(votes.values())
        return drafts[min(i for i, count in votes.items() if count == best)]

    async def _one_vote(self, path: Path, turn: int, drafts: Sequence[str]) -> int | None:
        order = list(range(len(drafts)))
        random.Random(f"{self._sample}/{path}/{turn}").shuffle(order)
        asked = prompts.choose(self._problem, [drafts[i] for i in order])
        reply = await self._ask(asked, (*path, turn), temperature=0.0)
        names = {prompts.letter(place): i for place, i in enumerate(order)}
        letter = read_letter(reply, names, drafts)
        return None if letter is None else names[letter]

    async def _program(self, path: Path, before: str | None) -> str:
        """Write a program and run it; a program that fails is written once more, with its error at hand."""
        error: str | None = None
        for attempt in range(OPERATORS["Programmer"].calls):
            reply = await self._ask(prompts.programmer(self._problem, before, error), (*path, attempt))
            source = extract_program(reply, self._problem.entry_point or "main")
            result = await self._bench.run(run_program, self._with_preamble(source))
            if self._problem.domain == "code":
                if result.status == "ok":
                    return f"```python\n{source}\n```"
            elif result.status == "ok" and result.stdout.strip():
                return f"#### {result.stdout.strip().splitlines()[-1]}"
            error = _why(result)
        return ""

    def _with_preamble(self, program: str) -> str:
        return f"{self._problem.preamble}\n\n{program}" if self._problem.preamble else program

    async def _test_code(self, path: Path, draft: str) -> Verdict:
        reply = await self._ask(prompts.write_tests(self._problem), path, temperature=0.0)
        name = self._problem.entry_point
        tests = "\n".join(line for line in extract_program(reply, name).splitlines() if line.startswith("assert "))
        if not tests:
            return Verdict(False, "Test", "no test could be written")
        source = self._with_preamble(extract_program(draft, name))
        run = await self._bench.run(run_tests, source, tests, name)
        return Verdict(run.level < 1.0, "Test", f"{run.passed} of {run.total} tests pass. {run.note}"[:_LONGEST_NOTE])

    async def _test_answer(self, path: Path, draft: str) -> Verdict:
        reply = await self._ask(prompts.write_check(self._problem, draft), path, temperature=0.0)
        result = await self._bench.run(run_program, extract_program(reply, "main"))
        # A check that does not run says nothing about the answer.
        fault = result.status == "ok" and "FAIL" in result.stdout and "PASS" not in result.stdout
        return Verdict(fault, "Test", f"a check printed: {result.stdout.strip() or _why(result)}"[:_LONGEST_NOTE])

    async def _ask(self, messages: list[ChatMessage], path: Path, temperature: float | None = None) -> str:
        sample = f"{self._sample}/{'.'.join(map(str, path))}"
        reply = await self._client.ask(messages, self._temperature if temperature is None else temperature, sample)
        self.tokens += reply.tokens
        return reply.text


def most_agreed(drafts: Sequence[str], domain: str) -> str:
    """Return a draft of the answer that most drafts agree on; of equally many, the first.

    Numbers agree by value, units converted; words once normalised; programs to the letter.  Empty drafts do not vote.
    """
    groups: list[list[str]] = []
    for draft in drafts:
        group = next((group for group in groups if _agree(group[0], draft, domain)), None)
        if not draft.strip():
            continue
        if group is None:
            groups.append([draft])
        else:
            group.append(draft)
    return max(groups, key=len)[0] if groups else drafts[0]


def _agree(one: str, other: str, domain: str) -> bool:
    if domain == "code":
        return one.split() == other.split()
    first, second = (stated_answer(draft.strip()).strip() for draft in (one, other))
    if domain == "math":
        a, b = read_quantity(first), read_quantity(second)
        if a is not None and b is not None:
            return same_value(a, b)
    return normalize_answer(first) == normalize_answer(second)


def _why(result: ProgramResult) -> str:
    refusal = result.note if result.status == "refused" else ""
    return refusal or result.stderr.strip()[-500:] or f"the program printed nothing ({result.status})"


log = logging.getLogger(__name__)


class EndpointRunner:
    """Runs workflows against an OpenAI-compatible chat endpoint.

    Attributes:
        usage: What its calls have cost so far.
    """

    def __init__(
        self,
        section: EndpointExecutor,
        sandbox: SandboxLimits,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """See that programs can be isolated, and open the cache; the endpoint is first called with the first batch.

        Raises:
            InputError: The system has no wall for programs and the recipe requires one, or the cache cannot be opened.
        """
        find_wall(sandbox)
        self._section = section
        self._sandbox = sandbox
        self._transport = transport
        self._cache = ReplyCache(section.cache) if section.cache else None
        self._pace = Pace(section)
        self.usage = Usage()

    async def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run all jobs at once, as far as the recipe's concurrency allows, and return their outcomes in order.

        Raises:
            EndpointError: The endpoint refuses or stays silent, or the budget is used up.  Calls under way have been
                let finish by then, and every reply is in the cache, where there is one.
        """
        if not jobs:
            return []
        bench = Bench(self._sandbox)
        async with ChatClient(self._section, self.usage, self._cache, self._transport, pace=self._pace) as client:
            outcomes = await all_of((self._one(client, job, bench) for job in jobs), BudgetError)
        log.info("%d workflows run; so far %d calls, %d tokens", len(jobs), self.usage.calls, self.usage.tokens)
        return outcomes

    def metrics(self) -> Mapping[str, float]:
        """Return the usage of the run so far: calls, replies from the cache, retries, tokens."""
        usage = self.usage
        cost = self._section.cost(usage.prompt_tokens, usage.completion_tokens)
        costs = {} if cost is None else {held_out.ENDPOINT.of("cost"): cost}
        return costs | {held_out.ENDPOINT.of(name): float(value) for name, value in usage.counts().items()}

    def drain_news(self) -> list[str]:
        """Return what happened to the endpoint since the last call: it fell silent, it answers again."""
        return self.usage.take_news()

    async def _one(self, client: ChatClient, job: Job, bench: Bench) -> Outcome:
        backend = Asking(client, self._section.temperature, job.problem, job.sample, bench)
        draft = await run(job.tree, backend)
        level, note = await grade(job.problem, draft, bench)
        first = backend.first()
        first_level = level if first == draft else (await grade(job.problem, first, bench))[0]
        return Outcome(level, first_level, backend.tokens, backend.calls, draft, note)
