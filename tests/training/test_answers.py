"""What a step says of its answers, from the rollouts at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest

from levelhead.records import Group, Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask, Split, Task
from levelhead.training.answers import answer_metrics


class Echo(SingleTurnTask):
    """Knows the perfect answer where there is one; "eh" and "unknown" mean the same to it."""

    name = "echo"

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        return iter(())

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(0.0)

    def canonical(self, prompt: Prompt, text: str) -> str:
        return "unknown" if text == "eh" else super().canonical(prompt, text)

    def oracle(self, prompt: Prompt) -> list[str] | None:
        right = prompt.facts.get("right")
        return None if right is None else [right]


class Kinds(Echo):
    """Verdicts and questions."""

    name = "kinds"

    def form(self, prompt: Prompt) -> str:
        return "verdict" if prompt.id.endswith("v") else "question"


class Blind(Echo):
    name = "blind"


def group(
    i: int, texts: Sequence[str], right: str | None = "a", task: str = "echo", ids: tuple[int, ...] = ()
) -> Group:
    prompt = Prompt(f"{task}/{i}", task, (), ids, {} if right is None else {"right": right})
    return Group(prompt, tuple(Rollout(prompt.id, (), Score(0.0), 0, (text,)) for text in texts))


def measured(groups: Sequence[Group]) -> dict[str, float]:
    tasks: dict[str, Task] = {"echo": Echo(), "blind": Blind(), "kinds": Kinds()}
    return answer_metrics(tasks, groups)


def test_answers_are_compared_by_what_they_mean_to_the_task() -> None:
    values = measured([group(0, ["eh", "Unknown"], "a"), group(1, ["unknown ", "EH"], "b")])
    assert values["answers/top_share/echo"] == 1.0  # "EH" is another wording, and one of two
    values = measured([group(0, ["eh", "Unknown"], "a"), group(1, ["unknown ", "eh"], "b")])
    assert values == {
        "answers/top_share/echo": 1.0,
        "answers/distinct/echo": 0.5,
        "answers/entropy/echo": 0.0,
        "answers/information/echo": 0.0,
        "answers/perfect_share/echo": 0.5,
    }


def test_answers_that_follow_the_prompt_hold_its_information() -> None:
    values = measured([group(0, ["a", "a"], "a"), group(1, ["b", "b"], "b")])
    assert values["answers/information/echo"] == pytest.approx(math.log(2))
    assert values["answers/top_share/echo"] == 0.5


def test_every_task_has_its_own() -> None:
    values = measured(
        [
            group(0, ["a"] * 2),
            group(1, ["b"] * 2),
            group(2, ["c"] * 2, None, "blind"),
            group(3, ["c"] * 2, None, "blind"),
        ]
    )
    assert values["answers/top_share/echo"] == 0.5
    assert values["answers/top_share/blind"] == 1.0
    assert "answers/perfect_share/blind" not in values


def test_one_answer_to_each_form_of_prompt_is_a_constant_answer() -> None:
    texts = ["0v", "1v", "2v", "3q", "4q", "5q"]
    rows = [(name, "no" if name.endswith("v") else "unknown") for name in texts]
    groups = [
        Group(prompt, tuple(Rollout(prompt.id, (), Score(0.0), 0, (said,)) for _ in range(3)))
        for name, said in rows
        for prompt in [Prompt(f"kinds/{name}", "kinds", (), (), {"right": name})]
    ]
    values = measured(groups)
    assert values["answers/top_share/kinds"] == 1.0
    assert values["answers/information/kinds"] == 0.0
    assert values["answers/perfect_share/kinds"] == pytest.approx(1 / 3)


def test_groups_of_one_prompt_are_one_prompt() -> None:
    assert measured([group(0, ["a"] * 2, ids=(1, 2)), group(1, ["a"] * 2, ids=(1, 2))]) == {}
    assert measured([group(0, ["a"] * 2), Group(Prompt("1", "echo", ()), ())]) == {}


def test_one_letter_for_everybody_is_one_answer_though_it_means_somebody_else_each_time() -> None:
    class Letters(Echo):
        def canonical(self, prompt: Prompt, text: str) -> str:
            return f"{prompt.id} {text}"

    values = answer_metrics({"echo": Letters()}, [group(i, ["A"] * 4) for i in range(4)])
    assert values["answers/top_share/echo"] == 1.0


class Stated(Echo):
    """Tells its prompts apart by their first fact."""

    name = "stated"

    def strata(self, prompt: Prompt) -> dict[str, str]:
        return {"kind": str(prompt.facts["kind"])}


def stated(i: int, kind: str, right: str | None, *answers: tuple[str, float]) -> Group:
    facts = {"kind": kind} | ({} if right is None else {"right": right})
    prompt = Prompt(f"stated/{i}", "stated", (), (), facts)
    return Group(prompt, tuple(Rollout(prompt.id, (), Score(reward), 0, (text,)) for text, reward in answers))


def by_stratum(*groups: Group) -> dict[str, float]:
    values = answer_metrics({"stated": Stated()}, groups)
    return {name: value for name, value in values.items() if name.startswith("strata/")}


def test_strata_are_measured_apart() -> None:
    read = ("unknown", -0.3), ("him", 0.9), ("her", -1.0), ("eh", -0.3)
    guessed = ("unknown", 0.2), ("eh", 0.9), ("him", -1.0), ("her", -1.0)
    settled = [stated(i, "settled", "him", *read) for i in (0, 1)]
    values = by_stratum(*settled, *(stated(i, "open", "unknown", *guessed) for i in (2, 3)))
    assert values["strata/reward/stated/settled"] == pytest.approx((-0.3 + 0.9 - 1.0 - 0.3) / 4)
    assert values["strata/success/stated/settled"] == 0.25
    assert values["strata/common/stated/settled"] == 0.5  # abstaining, the most common answer, is wrong there
    assert values["strata/success/stated/open"] == 0.25
    assert values["strata/common/stated/open"] == 0.0  # and right here, though half of it pays little


def test_without_an_oracle_a_common_answer_is_wrong_where_it_fails() -> None:
    groups = [stated(i, "ab"[i % 2], None, ("x", 0.0), ("x", 1.0)) for i in range(4)]
    assert by_stratum(*groups)["strata/common/stated/a"] == 0.5


def test_too_few_prompts_a_stratum_give_no_numbers() -> None:
    assert by_stratum(*(stated(i, "ab"[i % 2], None, ("x", 0.0)) for i in range(3))) == {}
    assert by_stratum(*(stated(i, "a", None, ("x", 0.0)) for i in range(4))) == {}
