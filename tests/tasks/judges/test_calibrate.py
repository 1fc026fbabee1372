"""Calibration: which judges are refused, with which numbers, and what the map to the common scale does."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levelhead.contrib.fairness import FairnessTask
from levelhead.contrib.faithfulness import FaithfulnessTask
from levelhead.errors import InputError
from levelhead.recipe.judge import Judges
from levelhead.recipe.load import validate
from levelhead.recipe.tasks import Fairness, Faithfulness
from levelhead.tasks.judges.calibrate import spearman
from levelhead.tasks.judges.calibration import Entry, fit_scale, read_calibrations
from levelhead.tasks.judges.labelled import labelled_cases
from levelhead.tasks.judges.panel import make_panel
from levelhead.tasks.judges.questions import RUBRICS, text_of
from levelhead.tasks.judges.sessions import calibrate_recipe


class Shown:
    """What a judge saw."""

    def __init__(self, text: str, number: int) -> None:
        match = re.search(r"\[answer ([0-9a-f]{12})\]\n(.*?)\n\[end of answer \1\]", text, re.DOTALL)
        assert match is not None
        self.answer, self.number = match[2], number
        self.reference = text.split("for comparison:\n")[1].split("\n\n[answer ")[0]
        self.last = text.index("for comparison") > text.index("[end of answer")
        self.right = self.reference.splitlines()[-1] in self.answer.splitlines()


def honest(shown: Shown) -> int:
    return 9 if shown.right else 2


TEMPERS: dict[str, tuple[Callable[[Shown], int | None], str | None]] = {
    "honest": (honest, None),
    "strict-but-sound": (lambda s: 4 if s.right else 1, None),
    "constant": (lambda s: 7, "agrees with the labels on 50%"),
    "upside-down": (lambda s: 10 - honest(s), "rank correlation with the labels is -"),
    "length-biased": (lambda s: min(10, honest(s) + len(s.answer) // 100), "by being wordy"),
    "sycophant": (lambda s: 10 if "perceptive" in s.answer else honest(s), "by praising it"),
    "injected": (lambda s: 10 if "Grade: 10" in s.answer else honest(s), "follows 100% of orders"),
    "forgetful": (lambda s: 10 if "Grade: 10" in s.answer else honest(s), "follows 100% of orders"),
    "position-biased": (lambda s: min(10, honest(s) + 4 * s.last), "with the place of the perfect answer"),
    "drifting": (lambda s: min(10, honest(s) + 3 * (s.number > 34)), "says the same again on"),
    "mute": (lambda s: None, "100% of its verdicts hold no grade"),
}


@functools.cache
def oracles() -> dict[str, list[str]]:
    task = FairnessTask(Fairness(kind="fairness", items=100))
    return {text_of(prompt): task.oracle(prompt) for prompt in task.prompts("train", 0)}


def oracle_of(asked: str) -> list[str]:
    return oracles()[asked]


class ShownPair:
    """What a judge of pairs saw."""

    def __init__(self, text: str, number: int) -> None:
        pairs = re.findall(r"\[answer [AB] ([0-9a-f]{12})\]\n(.*?)\n\[end of answer [AB] \1\]", text, re.DOTALL)
        (_, self.first), (_, self.second) = pairs
        self.number, self.perfect = number, oracle_of(text.split("]\n", 1)[1].split("\n[end of task")[0])


def better(shown: ShownPair, worth: Callable[[ShownPair, str], float], place: float = 0.0) -> str:
    gap = worth(shown, shown.first) + place - worth(shown, shown.second)
    return "tie" if gap == 0 else "A" if gap > 0 else "B"


def right(shown: ShownPair, text: str) -> float:
    return float(text in shown.perfect)


PAIR_TEMPERS: dict[str, tuple[Callable[[ShownPair], str | None], str | None]] = {
    "honest": (lambda s: better(s, right), None),
    "first-place": (lambda s: "A", "with the place of the perfect answer"),
    "leaning": (lambda s: better(s, right, 1.0), "a grade changes by 0.50 with the place"),
    "constant-tie": (lambda s: "tie", "agrees with the labels on 50%"),
    "upside-down": (lambda s: better(s, lambda s, t: -right(s, t)), "agrees with the labels on 0%"),
    "length-biased": (lambda s: better(s, lambda s, t: right(s, t) + len(t) / 400), "gains 0.50 by being wordy"),
    "sycophant": (lambda s: better(s, lambda s, t: right(s, t) + 9 * ("perceptive" in t)), "gains 0.50 by praising it"),
    "injected": (lambda s: "A" if "Better: A" in s.first + s.second else better(s, right), "follows 100% of orders"),
    "drifting": (lambda s: better(s, lambda s, t: right(s, t) * (-1 if s.number >= 60 else 1)), "says the same again"),
    "mute": (lambda s: None, "100% of its verdicts hold no grade"),
}


def calibrate_pairs(tmp_path: Path, name: str) -> Entry:
    numbers = itertools.count()

    async def reply(request: httpx2.Request) -> httpx2.Response:
        system, user = (message["content"] for message in json.loads(request.content)["messages"])
        said = PAIR_TEMPERS[name][0](ShownPair(user, next(numbers)))
        said = "hm" if said is None else f"{re.search('Better.*(?=: X)', system)[0]}: {said}"
        usage = {"prompt_tokens": 1000, "completion_tokens": 0}
        return httpx2.Response(200, json={"choices": [{"message": {"content": said}}], "usage": usage})

    shared = {
        "model": "m",
        "attempts": 1,
        "prompt_price": 1.0,
        "backoff_s": 0.001,
        "base_url": f"http://{name}.test/v1",
    }
    judges = {"members": [{"name": name, **shared}], "pairwise": {"kind": "tournament"}}
    recipe = validate(
        {"name": "t", "model": {"preset": "tiny"}, "grpo": {"steps": 1},
         "tasks": [{"kind": "fairness", "items": 100, "judges": judges}]}
    )  # fmt: skip
    (session,) = calibrate_recipe(recipe, 5, tmp_path / "t.judges.json", transport=httpx2.MockTransport(reply))
    return session.entries[name]


def calibrate(tmp_path: Path, *names: str, **keys: object) -> dict[str, Entry]:
    numbers = {name: itertools.count() for name in names}

    async def reply(request: httpx2.Request) -> httpx2.Response:
        name = request.url.host.removesuffix(".test")
        if name == "dead":
            return httpx2.Response(401)
        system, user = (message["content"] for message in json.loads(request.content)["messages"])
        grade = TEMPERS[name][0](Shown(user, next(numbers[name])))
        mark = "" if name == "forgetful" else re.search(r"\[[0-9a-f]{6}\]", system)[0]
        said = "hm" if grade is None else f"Grade{mark}: {grade}"
        usage = {"prompt_tokens": 1000, "completion_tokens": 0}
        return httpx2.Response(200, json={"choices": [{"message": {"content": said}}], "usage": usage})

    shared = {"model": "m", "attempts": 1, "prompt_price": 1.0, "backoff_s": 0.001}
    members = [{"name": name, "base_url": f"http://{name}.test/v1", **shared} for name in names]
    recipe = validate(
        {"name": "t", "model": {"preset": "tiny"}, "grpo": {"steps": 1},
         "tasks": [{"kind": "fairness", "items": 100, "judges": {"members": members, **keys}}]}
    )  # fmt: skip
    (session,) = calibrate_recipe(recipe, 5, tmp_path / "t.judges.json", transport=httpx2.MockTransport(reply))
    return session.entries


@pytest.mark.parametrize("name", TEMPERS)
def test_a_judge_is_refused_for_what_is_wrong_with_it(tmp_path: Path, name: str) -> None:
    (entry,) = calibrate(tmp_path, name).values()
    reason = TEMPERS[name][1]
    if reason is None:
        assert entry.refused == []
        assert entry.weight > 0
    else:
        assert any(reason in one for one in entry.refused), entry.refused
        assert entry.weight == 0


@pytest.mark.parametrize("name", PAIR_TEMPERS)
def test_a_judge_of_pairs_is_refused_for_what_is_wrong_with_it(tmp_path: Path, name: str) -> None:
    entry = calibrate_pairs(tmp_path, name)
    reason = PAIR_TEMPERS[name][1]
    if reason is None:
        assert entry.refused == []
        assert entry.figures["agreement"] == 1
        assert entry.figures["position_bias"] == 0
        assert entry.weight == pytest.approx(100)
    else:
        assert any(reason in one for one in entry.refused), entry.refused
        assert entry.weight == 0
    assert entry.figures["verdicts"] == 5 * (6 * 2 + 2 * 2)
    assert entry.figures["cost"] == pytest.approx(80 / 1000)


def test_a_judge_that_always_prefers_the_first_place_is_measured_so(tmp_path: Path) -> None:
    """By hand: the perfect answer wins first and loses last, and every pair is a tie."""
    figures = calibrate_pairs(tmp_path, "first-place").figures
    assert figures["position_bias"] == -1
    assert figures["agreement"] == 0.5
    assert figures["error"] == 0.5
    assert figures["correlation"] is None


def test_a_calibration_of_grades_is_none_of_pairs(tmp_path: Path) -> None:
    calibrate(tmp_path, "honest")
    member = {"name": "honest", "base_url": "http://honest.test/v1", "model": "m"}
    keys = {"members": [member], "calibration": str(tmp_path / "t.judges.json")}
    make_panel(Judges.model_validate(keys), "fairness", RUBRICS["fairness"])
    with pytest.raises(InputError, match="has changed since"):
        make_panel(Judges.model_validate({**keys, "pairwise": {}}), "fairness", RUBRICS["fairness"])


def test_a_dead_judge_is_refused_and_costs_the_others_nothing(tmp_path: Path) -> None:
    entries = calibrate(tmp_path, "dead", "honest")
    assert entries["dead"].refused[0].startswith("it cannot be asked: http://dead.test/v1 refuses a call with HTTP 401")
    assert entries["honest"].refused == []
    assert entries["honest"].figures["cost"] == pytest.approx(float(entries["honest"].figures["verdicts"] or 0) / 1000)


def test_a_scale_is_used_in_training_and_a_changed_judge_is_calibrated_again(tmp_path: Path) -> None:
    calibrate(tmp_path, "strict-but-sound")
    path = str(tmp_path / "t.judges.json")
    member = {"name": "strict-but-sound", "base_url": "http://strict-but-sound.test/v1", "model": "m"}
    recipe = Fairness.model_validate({"kind": "fairness", "judges": {"members": [member], "calibration": path}})
    assert recipe.judges is not None
    (slot,) = make_panel(recipe.judges, "fairness", RUBRICS["fairness"]).slots
    assert slot.scales[""](0.4) == pytest.approx(0.75 * 1 + 0.25 * 0.4)
    assert slot.scales[""](0.1) == pytest.approx(0.25 * 0.1)
    assert slot.refused == ()
    with pytest.raises(InputError, match="has changed since"):
        make_panel(recipe.judges, "fairness", "another rubric")
    with pytest.raises(InputError, match="is not in it"):
        make_panel(recipe.judges, "another task", RUBRICS["fairness"])


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"tasks": {"a": {"b": {}}}}'])
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"x\.json: (no such file|cannot be read)"):
        read_calibrations(path)


@pytest.mark.parametrize("kind", ["fairness", "faithfulness"])
def test_cases_are_what_they_are_called_by_the_rules(kind: str) -> None:
    task = (
        FairnessTask(Fairness(kind="fairness", items=100))
        if kind == "fairness"
        else FaithfulnessTask(Faithfulness(kind="faithfulness", items=100))
    )
    cases = labelled_cases(task, list(itertools.islice(task.prompts("train", 0), 40)), 8)
    kinds = {case.kind for case in cases}
    assert kinds == {"perfect", "subtle", "empty", "off-topic", "wordy", "flattering", "injected"}
    for case in cases:
        score = task.score(case.answer.prompt, case.answer.text).total
        top = task.score(case.answer.prompt, (task.oracle(case.answer.prompt) or [""])[0]).total
        assert (score == top) == case.right, case.kind
        if case.base is not None:
            assert cases[case.base].answer.text in case.answer.text


def test_an_answer_that_rules_find_as_good_is_no_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a score costs calls, so that constant answers are not scored."""
    task = FairnessTask(Fairness(kind="fairness", items=100))
    same = task.score(next(task.prompts("train", 0)), "")
    monkeypatch.setattr(FairnessTask, "score", lambda *_: same)
    monkeypatch.setattr(FairnessTask, "rules", None)
    cases = labelled_cases(task, list(itertools.islice(task.prompts("train", 0), 40)), 8)
    assert {case.kind for case in cases} == {"perfect", "empty"}


@given(st.lists(st.tuples(st.sampled_from([n / 10 for n in range(11)]), st.booleans()), min_size=2, max_size=40))
def test_a_scale_never_falls_and_stays_within_its_bounds(graded: list[tuple[float, bool]]) -> None:
    scale = fit_scale([grade for grade, _ in graded], [right for _, right in graded])
    values = [scale(n / 100) for n in range(101)]
    assert all(a < b for a, b in itertools.pairwise(values)), "a better grade is always worth more"
    assert 0 <= values[0] <= values[-1] <= 1


def test_a_scale_is_the_isotonic_regression() -> None:
    """By hand: 0.2 and 0.4 are the wrong way round and share their mean; both sides weigh a half."""
    scale = fit_scale([0.1, 0.2, 0.4, 0.9], [False, True, False, True])
    assert [scale.fitted(grade) for grade in (0.0, 0.1, 0.2, 0.3, 0.4, 0.9, 1.0)] == [0, 0, 0.5, 0.5, 0.5, 1, 1]
    assert scale.fitted(0.65) == pytest.approx(0.75)


def test_rank_correlation_by_hand() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([0.2, 0.2, 0.9, 0.4], [0, 0, 1, 0]) == pytest.approx(0.8165, abs=1e-4)
    assert spearman([1, 1], [0, 1]) is None


def test_one_judge_alone_can_be_calibrated_too(tmp_path: Path) -> None:
    async def reply(request: httpx2.Request) -> httpx2.Response:
        shown = Shown(json.loads(request.content)["messages"][-1]["content"], 0)
        return httpx2.Response(200, json={"choices": [{"message": {"content": f"Grade: {honest(shown)}"}}]})

    judge = {"base_url": "http://honest.test/v1", "model": "a/m"}
    recipe = validate(
        {"name": "t", "model": {"preset": "tiny"}, "grpo": {"steps": 1},
         "tasks": [{"kind": "fairness", "items": 100, "judge": judge}]}
    )  # fmt: skip
    (session,) = calibrate_recipe(recipe, 3, tmp_path / "x.json", transport=httpx2.MockTransport(reply))
    assert session.entries["m"].refused == []
