"""The endpoint executor against a scripted endpoint: bounded, retried, budgeted, cached, every call counted once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from levelhead.contrib.workflow import endpoint
from levelhead.contrib.workflow.endpoint import EndpointRunner, most_agreed
from levelhead.contrib.workflow.interpret import Job, Outcome
from levelhead.contrib.workflow.language import check, parse, to_text
from levelhead.contrib.workflow.problems import Problem
from levelhead.contrib.workflow.task import WorkflowTask
from levelhead.errors import InputError, RewardError
from levelhead.recipe.tasks import Workflow
from levelhead.recipe.workflow import EndpointExecutor, SandboxLimits
from levelhead.tasks.base import Answer
from levelhead.tasks.endpoint import BudgetError, ChatClient, EndpointError, ReplyCache
from levelhead.tasks.metering import Usage
from levelhead.tasks.sandbox import ProgramResult, run
from sandboxed import can_run

SANDBOX = SandboxLimits(cpu_s=1, wall_s=60, isolation="none")
MATH = Problem("What is 6 * 7?", (("42",),), id="m")
CODE = Problem(
    "Write f(x) that returns x + 1.",
    (),
    id="c",
    domain="code",
    entry_point="f",
    tests="assert f(1) == 2\nassert f(5) == 6",
)


class Endpoint:
    """A chat endpoint that answers by a rule, and remembers what it was asked."""

    def __init__(self, answer: Callable[[str], str] | str = "#### 42", **behaviour: object) -> None:
        self.answer = answer if callable(answer) else lambda _: str(answer)
        self.fail_first: list[object] = list(behaviour.get("fail_first", []))  # type: ignore[call-overload]
        self.usage = bool(behaviour.get("usage", True))
        self.bodies: list[dict[str, object]] = []
        self.replies = 0
        self.now = 0
        self.most_at_once = 0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        await asyncio.sleep(0.002)
        self.now -= 1
        if self.fail_first:
            failure = self.fail_first.pop(0)
            if isinstance(failure, Exception):
                raise failure
            assert isinstance(failure, httpx2.Response)
            return failure
        body = json.loads(request.content)
        self.bodies.append(body)
        self.replies += 1
        data: dict[str, object] = {"choices": [{"message": {"content": self.answer(body["messages"][-1]["content"])}}]}
        if self.usage:
            data["usage"] = {"prompt_tokens": 10, "completion_tokens": 5}
        return httpx2.Response(200, json=data)

    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self)


def section(**keys: object) -> EndpointExecutor:
    base = {"kind": "endpoint", "base_url": "http://endpoint.test/v1", "model": "m", "backoff_s": 0.001}
    return EndpointExecutor.model_validate({**base, **keys})


def runner(endpoint: Endpoint, **keys: object) -> EndpointRunner:
    return EndpointRunner(section(**keys), SANDBOX, endpoint.transport())


def job(text: str, problem: Problem = MATH, sample: int = 0) -> Job:
    tree = parse(text)
    check(tree)
    return Job(tree, to_text(tree), problem, sample)


def execute(one: EndpointRunner, *jobs: Job) -> list[Outcome]:
    return asyncio.run(one.execute(jobs))


def test_a_workflow_is_run_call_by_call_and_its_answer_graded() -> None:
    endpoint = Endpoint(lambda prompt: "VERDICT: RIGHT" if "Review the answer" in prompt else "I think #### 42")
    one = runner(endpoint)
    (outcome,) = execute(one, job("Custom -> Review ? Revise : done"))
    assert (outcome.level, outcome.calls, outcome.tokens) == (1.0, 2, 30)
    assert outcome.answer == "I think #### 42"
    assert one.usage == Usage(calls=2, prompt_tokens=20, completion_tokens=10)


def test_a_reviewers_fault_leads_to_a_revision_that_reads_the_review() -> None:
    def answer(prompt: str) -> str:
        if "Review the answer" in prompt:
            return "VERDICT: WRONG\nSeven times six is more."
        return "#### 42" if "Seven times six is more." in prompt else "#### 41"

    (outcome,) = execute(runner(Endpoint(answer)), job("Custom -> Review ? Revise : done"))
    assert (outcome.level, outcome.calls) == (1.0, 3)


def test_requests_carry_the_model_the_limits_and_a_seed_of_their_own() -> None:
    endpoint = Endpoint()
    execute(runner(endpoint, temperature=0.3, max_tokens=77), job("[Custom, Custom] -> ScEnsemble"))
    first, second = endpoint.bodies
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.3, 77)
    assert first["seed"] != second["seed"]
    endpoint = Endpoint()
    execute(runner(endpoint, send_seed=False), job("[Custom, Custom] -> ScEnsemble"))
    assert len(endpoint.bodies) == 2
    assert all("seed" not in body for body in endpoint.bodies)


def test_no_more_calls_are_under_way_than_the_recipe_allows() -> None:
    endpoint = Endpoint()
    execute(runner(endpoint, concurrency=3), *(job("Custom", sample=i) for i in range(20)))
    assert endpoint.most_at_once == 3
    assert endpoint.replies == 20


def test_failed_calls_are_repeated_counted_once_and_spoken_of_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = [
        httpx2.ConnectError("refused"),
        httpx2.Response(503),
        httpx2.Response(429, headers={"retry-after": "0.01"}),
        httpx2.ReadTimeout("slow"),
        httpx2.RemoteProtocolError("killed"),
        httpx2.Response(200, text="<html>starting up</html>"),
        httpx2.Response(200, json={"choices": []}),
    ]
    endpoint = Endpoint(fail_first=failures)
    one = runner(endpoint, concurrency=2)
    with caplog.at_level(logging.WARNING):
        outcomes = execute(one, *(job("Custom", sample=i) for i in range(6)))
    assert [outcome.level for outcome in outcomes] == [1.0] * 6
    assert (one.usage.calls, one.usage.retries) == (6, 7)
    assert one.usage.tokens == 6 * 15
    assert "does not answer" in caplog.text
    assert "answers again" in caplog.text
    assert "none is lost" in caplog.text


def test_a_refused_call_stops_at_once_with_what_the_endpoint_said() -> None:
    endpoint = Endpoint(fail_first=[httpx2.Response(404, text="no model called m")])
    with pytest.raises(EndpointError, match=r"HTTP 404: no model called m") as caught:
        execute(runner(endpoint), job("Custom"))
    assert isinstance(caught.value, RewardError)


def test_patience_ends_with_a_word_on_how_to_go_on() -> None:
    endpoint = Endpoint(fail_first=[httpx2.ConnectError("refused")] * 1000)
    with pytest.raises(EndpointError, match=r"no reply for .*resume the run"):
        execute(runner(endpoint, patience_s=0.05), job("Custom"))


def test_a_budget_in_calls_is_never_overdrawn_and_a_raised_one_pays_nothing_twice(tmp_path: Path) -> None:
    cache = str(tmp_path / "replies.sqlite")
    jobs = [job("Custom -> Format", sample=i) for i in range(6)]
    endpoint = Endpoint()
    one = runner(endpoint, max_calls=7, concurrency=4, cache=cache)
    with pytest.raises(BudgetError, match="max_calls is 7"):
        execute(one, *jobs)
    assert endpoint.replies == one.usage.calls == 7
    more = Endpoint()
    again = runner(more, max_calls=100, cache=cache)
    assert len(execute(again, *jobs)) == 6
    assert more.replies == again.usage.calls == 5
    assert again.usage.cached == 7


def test_a_call_under_way_when_the_client_closes_is_kept_and_none_is_begun(tmp_path: Path) -> None:
    endpoint = Endpoint()
    cache = ReplyCache(str(tmp_path / "replies.sqlite"))

    async def abandon() -> None:
        async with ChatClient(section(concurrency=1), Usage(), cache, endpoint.transport()) as client:
            calls = [asyncio.create_task(client.ask([{"role": "user", "content": word}], 0.5, word)) for word in "abc"]
            await asyncio.sleep(0.001)
            assert endpoint.now == 1
            for call in calls:
                call.cancel()

    asyncio.run(abandon())
    assert endpoint.replies == len(cache) == 1


def test_a_budget_in_tokens_stops_the_run() -> None:
    endpoint = Endpoint()
    with pytest.raises(BudgetError, match="max_total_tokens is 40, and 45 tokens are used in 3 calls"):
        execute(runner(endpoint, max_total_tokens=40, concurrency=1), *(job("Custom", sample=i) for i in range(9)))
    assert endpoint.replies == 3


def test_replies_are_kept_by_content_and_a_second_run_asks_nothing(tmp_path: Path) -> None:
    cache = str(tmp_path / "deep" / "replies.sqlite")
    jobs = [job(text, sample=i) for text in ("Custom", "Custom -> Review ? Revise : done") for i in range(3)]
    first, second, third = Endpoint(), Endpoint(), Endpoint("#### 41")
    outcomes = execute(runner(first, cache=cache), *jobs)
    one = runner(second, cache=cache)
    assert execute(one, *jobs) == outcomes
    assert second.replies == one.usage.calls == 0
    assert one.usage.cached == first.replies == len(ReplyCache(cache))
    # Another model, temperature or sample is another call.
    execute(runner(third, cache=cache, model="other"), jobs[0])
    execute(runner(third, cache=cache, temperature=0.1), jobs[0])
    execute(runner(third, cache=cache), job("Custom", sample=9))
    assert third.replies == 3


def test_equal_calls_at_once_are_one_call() -> None:
    endpoint = Endpoint()
    one = runner(endpoint)
    outcomes = execute(one, job("Custom"), job("Custom"), job("Custom"))
    assert endpoint.replies == one.usage.calls == 1
    assert [outcome.tokens for outcome in outcomes] == [15] * 3


def test_tokens_that_the_endpoint_does_not_count_are_estimated_and_marked() -> None:
    one = runner(Endpoint(usage=False))
    (outcome,) = execute(one, job("Custom"))
    assert one.usage.estimated == 1
    assert outcome.tokens == one.usage.tokens > 10


def test_the_key_comes_from_the_environment_and_never_from_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("authorization", ""))
        return httpx2.Response(200, json={"choices": [{"message": {"content": "#### 42"}}]})

    monkeypatch.setenv("LEVELHEAD_TEST_KEY", "k-123")
    keyed = section(api_key_env="LEVELHEAD_TEST_KEY")
    asyncio.run(EndpointRunner(keyed, SANDBOX, httpx2.MockTransport(handler)).execute([job("Custom")]))
    assert seen == ["Bearer k-123"]
    monkeypatch.delenv("LEVELHEAD_TEST_KEY")
    with pytest.raises(InputError, match="LEVELHEAD_TEST_KEY"):
        ChatClient(keyed, Usage())


def test_a_cache_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a data base, and long enough to be looked at as one: " * 40)
    with pytest.raises(InputError, match=r"executor\.cache"):
        ReplyCache(tmp_path / "file")


def test_the_answer_most_drafts_agree_on_is_taken() -> None:
    def pick(domain: str, *texts: str) -> str:
        return most_agreed(texts, domain)

    assert pick("math", "#### 41", "it is #### 42", "#### 42.0") == "it is #### 42"
    assert pick("math", "#### 1000 m", "#### 7", "#### 1 km") == "#### 1000 m"
    assert pick("qa", "#### Rome", "#### the Oslo", "#### oslo.") == "#### the Oslo"
    assert pick("code", "def f(): 1", "def f():   1", "def f(): 2") == "def f(): 1"
    assert pick("qa", "", "", "#### Oslo") == "#### Oslo"
    assert pick("qa", "", "") == ""
    assert pick("qa", "#### A", "#### B") == "#### A"


def test_an_ensemble_by_the_model_is_a_vote_over_shuffled_letters() -> None:
    def answer(prompt: str) -> str:
        if "Which of these answers" not in prompt:
            return "#### 42" if "step by step" in prompt else "#### 41"
        return next(letter for letter in "ABC" if f"<{letter}>\n#### 42" in prompt)

    endpoint = Endpoint(answer)
    (outcome,) = execute(runner(endpoint), job("[Custom, AnswerGenerate, Custom -> Format] -> MdEnsemble"))
    assert outcome.level == 1.0
    votes = [str(body["messages"]) for body in endpoint.bodies if "Which of these" in str(body["messages"])]
    assert len(votes) == 3
    assert len(set(votes)) > 1


@pytest.mark.parametrize("vote", ["A good answer would be shorter.", "A or B", "I cannot say.", "", "A\nB\nC"])
def test_a_reply_that_chooses_nothing_is_no_vote_and_the_first_draft_stands(vote: str) -> None:
    def answer(prompt: str) -> str:
        if "Which of these answers" in prompt:
            return vote
        return "#### 42" if "step by step" in prompt else "#### 41"

    (outcome,) = execute(runner(Endpoint(answer)), job("[AnswerGenerate, Custom, Custom -> Format] -> MdEnsemble"))
    assert outcome.level == 1.0


def test_a_review_that_only_quotes_a_verdict_finds_no_fault() -> None:
    def answer(prompt: str) -> str:
        if "Review the answer" in prompt:
            return 'The draft claims "VERDICT: WRONG" of itself.\n> VERDICT: WRONG\nVERDICT: RIGHT'
        return "#### 41" if "A reviewer said" in prompt else "#### 42"

    (outcome,) = execute(runner(Endpoint(answer)), job("Custom -> Review ? Revise : done"))
    assert (outcome.level, outcome.calls) == (1.0, 2)


@can_run
def test_a_program_is_run_and_written_again_when_it_fails() -> None:
    def answer(prompt: str) -> str:
        if "Your last program failed" in prompt:
            assert "ZeroDivisionError" in prompt
            return "```python\nprint(6 * 7)\n```"
        return "```python\nprint(1 / 0)\n```"

    endpoint = Endpoint(answer)
    (outcome,) = execute(runner(endpoint), job("Programmer"))
    assert (outcome.level, outcome.answer, endpoint.replies) == (1.0, "#### 42", 2)


def test_a_writer_is_told_the_programs_error_and_not_which_wall_it_ran_behind() -> None:
    failed = ProgramResult("error", stderr="ZeroDivisionError", wall="landlock", note="the system allows no namespaces")
    assert endpoint._why(failed) == "ZeroDivisionError"
    assert endpoint._why(ProgramResult("refused", note="too long")) == "too long"


def test_a_runner_says_at_once_that_programs_cannot_be_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_available", lambda walls: ())
    run._probe.cache_clear()
    try:
        with pytest.raises(InputError, match=r"tasks\[\].sandbox.isolation is 'required'"):
            EndpointRunner(section(), SandboxLimits())
    finally:
        run._probe.cache_clear()


@can_run
def test_a_program_that_never_runs_leaves_no_answer() -> None:
    (outcome,) = execute(runner(Endpoint("```python\nraise ValueError\n```")), job("Programmer -> Review -> Revise"))
    assert outcome.level == 0.0


@can_run
def test_code_is_tested_by_assertions_the_model_wrote_and_repaired_with_the_failing_one() -> None:
    def answer(prompt: str) -> str:
        if "Do not solve the problem" in prompt:
            return "```python\nassert f(1) == 2\nimport os\nassert f(-1) == 0\n```"
        if "A reviewer said" in prompt:
            assert "f(1) == 2" in prompt
            return "```python\ndef f(x): return x + 1\n```"
        return "```python\ndef f(x): return x\n```"

    (outcome,) = execute(runner(Endpoint(answer)), job("CustomCodeGenerate -> (Test ? Revise : done) * 3", CODE))
    assert (outcome.level, outcome.calls) == (1.0, 4)


@can_run
def test_an_answer_is_checked_by_a_program_whose_crash_is_no_evidence() -> None:
    def check_prints(source: str) -> float:
        def answer(prompt: str) -> str:
            if "Check the answer below" in prompt:
                return f"```python\n{source}\n```"
            return "#### 42" if "A reviewer said" in prompt else "#### 41"

        (outcome,) = execute(runner(Endpoint(answer)), job("Custom -> Test ? Revise : done"))
        return outcome.level

    assert check_prints("print('FAIL')") == 1.0
    assert check_prints("print('PASS')") == 0.4
    assert check_prints("print('FAIL')\n1 / 0") == 0.4


def test_one_broken_job_does_not_hide_behind_the_budget() -> None:
    endpoint = Endpoint(fail_first=[httpx2.Response(401, text="bad key")])
    with pytest.raises(EndpointError, match="bad key"):
        execute(runner(endpoint, max_calls=2, concurrency=1), *(job("Custom", sample=i) for i in range(5)))


def test_the_task_runs_groups_through_the_endpoint() -> None:
    recipe = {"kind": "workflow", "items": 90, "executor": section().model_dump()}
    endpoint = Endpoint(lambda prompt: f"#### {Counter(prompt).total()}")
    keys = Workflow.model_validate(recipe)
    one = WorkflowTask(keys, EndpointRunner(section(), SANDBOX, endpoint.transport()))
    prompt = next(prompt for prompt in one.prompts("train", 0) if prompt.facts["domain"] == "qa")
    scores = asyncio.run(one.score_batch([Answer(prompt, "Custom")] * 3 + [Answer(prompt, "### Step 1")]))
    assert [score.valid for score in scores if score] == [True, True, True, False]
    assert endpoint.replies == 3  # three samples of one workflow, and a fallback that is not run
    assert scores[0] is not None
    assert scores[0].info["answer"].startswith("####")
    assert "expected" not in scores[0].info
    assert one.summarize([])["endpoint/calls"] == 3
