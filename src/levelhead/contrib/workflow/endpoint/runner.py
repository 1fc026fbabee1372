"""The ``endpoint`` executor: workflows run by asking a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import httpx2

from levelhead.contrib.workflow.answers import grade
from levelhead.contrib.workflow.endpoint.operators import Asking
from levelhead.contrib.workflow.executor import Job, Outcome
from levelhead.contrib.workflow.interpret import run
from levelhead.metrics import held_out
from levelhead.recipe.workflow import EndpointExecutor, SandboxLimits
from levelhead.tasks.endpoint import ChatClient, Pace, ReplyCache, all_of
from levelhead.tasks.metering import Usage
from levelhead.tasks.sandbox import Bench, find_wall

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
            outcomes = await all_of(self._one(client, job, bench) for job in jobs)
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
        level, note = await grade(job.problem, draft.text, bench)
        first = backend.first()
        first_level = level if first == draft else (await grade(job.problem, first.text, bench))[0]
        return Outcome(level, first_level, backend.tokens, backend.calls, draft.text, note)
