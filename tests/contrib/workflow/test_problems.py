"""Problems: the generator tells the truth, files are read or refused by line, and epochs keep their ratios."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from levelhead.contrib.workflow import problems as problems_module
from levelhead.contrib.workflow.answers import grade, grade_number
from levelhead.contrib.workflow.problems import DOMAINS, Problem, epoch, generate, load
from levelhead.contrib.workflow.task import WorkflowTask
from levelhead.errors import InputError
from levelhead.recipe.tasks import Workflow
from levelhead.tasks.datasets.base import Domain
from levelhead.tasks.registry import make_task
from levelhead.tasks.sandbox import Bench
from sandboxed import can_run
from tasks.datasets import samples

GSM8K = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k" / "train.jsonl"


def jsonl(folder: Path, *rows: object) -> str:
    file = folder / "problems.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(file)


def test_generated_problems_are_many_different_and_evenly_spread() -> None:
    problems = generate(900)
    assert len({problem.question for problem in problems}) == 900
    assert len({problem.id for problem in problems}) == 900
    spread = Counter((problem.domain, problem.difficulty) for problem in problems)
    assert len(spread) == 9
    assert max(spread.values()) - min(spread.values()) <= 1


def test_a_shorter_list_of_generated_problems_begins_a_longer_one() -> None:
    assert generate(50) == generate(200)[:50]


def test_more_problems_than_there_are_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems_module, "_PATIENCE", 5)
    with pytest.raises(InputError, match="run out"):
        generate(10**6)


def _solve_math(question: str) -> int:
    sentences = re.findall(r"[^.?]+[.?]", question)
    have = int(re.findall(r"\d+", sentences[0])[0])
    for sentence in sentences[1:-1]:
        if "finds" in sentence:
            have += int(re.findall(r"\d+", sentence)[0])
        elif "loses" in sentence:
            have -= int(re.findall(r"\d+", sentence)[0])
        elif "half" in sentence:
            assert have % 2 == 0
            have //= 2
        else:
            have *= int(re.findall(r"\d+", sentence)[0])
        assert have >= 0
    return have


def _solve_qa(question: str) -> str:
    *facts, asked = [part.strip() for part in re.findall(r"[^.?]+[.?]", question)]
    kin = {(m[1], m[2]): m[3] for f in facts if (m := re.match(r"The (\w+) of (\w+) is (\w+)\.", f))}
    about = {m[1]: m[2] for f in facts if (m := re.match(r"(\w+) (?:lives in|is a) (\w+)\.", f))}
    chain = re.findall(r"the (\w+) of", asked.replace("the job of", ""))
    who = re.findall(r"(\w+)(?: live)?\?$", asked)[0]
    for relation in reversed(chain):
        who = kin[relation, who]
    return about[who]


def test_generated_answers_are_right_by_a_second_solution() -> None:
    for problem in generate(450):
        if problem.domain == "math":
            assert problem.answers == ((str(_solve_math(problem.question)),),), problem.question
        elif problem.domain == "qa":
            assert problem.answers == ((_solve_qa(problem.question),),), problem.question


def test_harder_generated_problems_are_longer() -> None:
    words: dict[tuple[str, str], list[int]] = {}
    for problem in generate(450):
        words.setdefault((problem.domain, problem.difficulty), []).append(len(problem.question.split()))
    for domain in DOMAINS:
        easy, medium, hard = (sum(words[domain, d]) / len(words[domain, d]) for d in ("easy", "medium", "hard"))
        assert easy < medium < hard


def test_rows_with_a_domain_are_read(tmp_path: Path) -> None:
    rows = (
        {"question": "1 + 1?", "answer": 2, "domain": "math", "difficulty": "easy"},
        {"question": "Capital?", "answer": ["Oslo", "Oslo city"], "domain": "qa"},
        {"question": "f", "answer": "assert f(1) == 1", "domain": "code", "entry_point": "f"},
        {
            "question": "g",
            "answer": "def g(): ...",
            "domain": "code",
            "entry_point": "g",
            "tests": "assert g() is None",
        },
    )
    one, two, three, four = load(jsonl(tmp_path, *rows))
    assert (one.answers, one.difficulty) == ((("2",),), "easy")
    assert (two.answers, two.difficulty) == ((("Oslo",), ("Oslo city",)), "medium")
    assert (three.tests, three.answers, three.entry_point) == ("assert f(1) == 1", (), "f")
    assert (four.tests, four.answers) == ("assert g() is None", (("def g(): ...",),))
    assert len({problem.id for problem in (one, two, three, four)}) == 4


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?", "answer": "1", "domain": "maths"}, "domain"),
        ({"question": "?", "answer": "no marker"}, "#### N"),
        ({"question": "?", "domain": "math"}, "answer"),
        ({"question": "?", "answer": True, "domain": "math"}, "answer"),
        ({"question": " ", "answer": "1", "domain": "math"}, "question"),
        ({"question": "?", "answer": "1", "domain": "math", "difficulty": "huge"}, "difficulty"),
        ({"question": "?", "answer": "assert f()", "domain": "code"}, "entry_point"),
        ({"question": "?", "answer": "assert f()", "domain": "code", "entry_point": "f()"}, "entry_point"),
        ({"question": "?", "answer": "def f(): ...", "domain": "code", "entry_point": "f"}, "tests"),
        ("{not json", "JSON"),
    ],
)
def test_a_malformed_row_is_refused_with_its_line(tmp_path: Path, row: object, said: str) -> None:
    good = {"question": "1 + 1?", "answer": "2", "domain": "math"}
    with pytest.raises(InputError, match=said) as caught:
        load(jsonl(tmp_path, good, row))
    assert "line 2" in str(caught.value)


@pytest.mark.data
def test_gsm8k_is_read_whole_and_every_answer_can_be_graded() -> None:
    if not GSM8K.exists():
        pytest.skip(f"needs GSM8K at {GSM8K}")
    problems = load(str(GSM8K))
    assert len(problems) == 7473
    assert {problem.domain for problem in problems} == {"math"}
    assert len({problem.difficulty for problem in problems}) == 3
    for problem in problems[::25]:
        assert grade_number(f"So it is\n#### {problem.answers[0][0]}", problem.answers[0][0]) == 1.0


def _pool(**sizes: int) -> list[Problem]:
    domains: dict[str, Domain] = {domain: domain for domain in DOMAINS}
    return [
        Problem(f"{name}-{i}", (("1",),), id=f"{name}-{i}", domain=domains[name])
        for name, n in sizes.items()
        for i in range(n)
    ]


def test_an_epoch_keeps_its_ratios_at_every_point() -> None:
    ratios: dict[Domain, float] = {"math": 0.5, "code": 0.3, "qa": 0.2}
    order = epoch(_pool(math=500, code=60, qa=90), ratios, 3, "task")
    assert Counter(problem.domain for problem in order) == {"math": 100, "code": 60, "qa": 40}
    for n in range(10, len(order), 7):
        seen = Counter(problem.domain for problem in order[:n])
        assert all(abs(seen[domain] - ratio * n) <= 1.5 for domain, ratio in ratios.items())


def test_an_epoch_depends_on_the_seed_alone_and_repeats_nothing() -> None:
    pool = _pool(math=50, code=40, qa=30)
    ratios: dict[Domain, float] = {"math": 1.0, "qa": 1.0}
    assert epoch(pool, ratios, 0, "a") == epoch(pool, ratios, 0, "a")
    assert epoch(pool, ratios, 0, "a") != epoch(pool, ratios, 1, "a")
    assert len({problem.id for problem in epoch(pool, ratios, 0, "a")}) == 60
    assert sorted(problem.id for problem in epoch(pool, None, 0, "a")) == sorted(problem.id for problem in pool)


def test_a_domain_without_problems_cannot_be_asked_for() -> None:
    with pytest.raises(InputError, match="'qa'"):
        epoch(_pool(math=5), {"math": 1.0, "qa": 1.0}, 0, "a")


@can_run
@pytest.mark.parametrize(("name", "domain"), [("humaneval", "code"), ("drop", "qa"), ("math", "math"), ("bbq", "qa")])
def test_a_public_data_set_brings_its_own_checker(name: str, domain: str, tmp_path: Path) -> None:
    path = samples.write_lines(tmp_path / "data.jsonl", samples.SAMPLES[name])
    task = make_task(Workflow.model_validate({"kind": "workflow", "dataset": name, "path": path}))
    assert isinstance(task, WorkflowTask)
    for problem in (*task.problems("train"), *task.problems("eval")):
        assert (problem.domain, problem.dataset) == (domain, name)
        assert asyncio.run(grade(problem, problem.solution, Bench()))[0] == 1.0
        assert asyncio.run(grade(problem, "", Bench()))[0] == 0.0
