"""One answer to everything, in our own runs and in the logs of trainers that do not measure answers."""

from __future__ import annotations

import random

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose

CODE = "constant-answer"
Row = dict[str, float]


def diagnosed(rows: list[Row]) -> Diagnosis:
    history = History()
    for i, row in enumerate(rows, 1):
        history.append(i, row)
    return diagnose(history)


def codes(rows: list[Row]) -> list[str]:
    return [finding.code for finding in diagnosed(rows).findings if finding.severity != "info"]


def own(share: float, entropy: float, told: float, perfect: float | None, reward: float, task: str = "qa") -> Row:
    row = {
        f"answers/top_share/{task}": share,
        f"answers/entropy/{task}": entropy,
        f"answers/information/{task}": told,
        f"reward/{task}": reward,
        f"validity/{task}": 1.0,
        "reward": reward,
        "reward_std": 0.3,
        "frac_reward_zero_std": 0.3,
        "entropy": 0.3,
        "grad_norm": 0.4,
    }
    return row | ({} if perfect is None else {f"answers/perfect_share/{task}": perfect})


def demo(n: int = 100) -> list[Row]:
    """What the two-objective demonstration did: the reward rises all the way while reading is forgotten."""
    rng = random.Random(0)
    rows = []
    for i in range(n):
        t = min(1.0, 1.6 * i / n)
        rows.append(
            own(
                min(1.0, 0.3 + 0.7 * t), 2.2 * (1 - t) + 0.05, max(0.0, 0.9 * (1 - t) + rng.gauss(0, 0.05)), 0.25,
                -0.5 + 0.4 * t + rng.gauss(0, 0.02),
            )
        )  # fmt: skip
    return rows


def test_a_reward_that_rises_while_every_prompt_comes_to_get_one_answer_is_no_success() -> None:
    finding = diagnosed(demo()).findings[0]
    assert (finding.code, finding.severity) == (CODE, "critical")
    assert finding.first_step is not None
    assert 45 <= finding.first_step <= 75


def test_one_task_of_two_is_enough() -> None:
    rows = [row | own(0.4, 1.5, 0.9, 0.4, 0.5 + 0.001 * i, "other") for i, row in enumerate(demo())]
    assert codes(rows)[0] == CODE


@pytest.mark.parametrize(
    "last",
    [
        own(1.0, 0.02, 0.0, 1.0, 0.9),  # the same answer is right everywhere
        own(1.0, 0.02, 0.0, None, 0.98),  # and so it seems where nobody knows the right ones
        own(0.4, 1.4, 1.0, 0.4, 0.6),  # reads
        own(1.0, 2.0, 0.0, 0.3, 0.3),  # draws from one wide distribution: it has not settled
        own(0.6, 0.6, 0.5, 0.55, 0.9),  # labels
        own(1.0, 0.02, 0.0, 0.3, 0.0) | {"validity/qa": 0.0},  # nothing parses: another finding's business
    ],
)
def test_what_only_looks_alike_is_not_called_so(last: Row) -> None:
    known = "answers/perfect_share/qa" in last
    rows = [own(0.4, 1.5, 0.9, 0.3 if known else None, 0.2) for _ in range(30)] + [dict(last) for _ in range(60)]
    assert CODE not in codes(rows)


def test_the_best_answer_to_all_prompts_on_the_way_to_reading_is_given_time() -> None:
    before = [own(0.5, 2.5, 0.0, 0.3, 0.1) for _ in range(20)]
    plateau = [own(1.0, 0.2, 0.0, 0.3, 0.5) for _ in range(10)]
    assert CODE not in codes([*before, *plateau])
    assert CODE in codes([*before, *plateau * 5])


def other(i: int, *, length: float | None = None, alive: bool = True, reward: float = 0.4, entropy: float = 0.4) -> Row:
    rng = random.Random(i)
    low, high = (length, length) if length else (40.0 + rng.randrange(9), 160.0 + rng.randrange(20))
    return {
        "reward": reward + (rng.gauss(0, 0.03) if alive else 0.0),
        "reward_std": 0.3 if alive else 0.0,
        "entropy": entropy,
        "grad_norm": 0.4 if alive else 0.001,
        "loss": 0.01 if alive else 0.0001,
        "completions/mean_length": length or 90.0 + rng.gauss(0, 4),
        "completions/min_length": low,
        "completions/max_length": high,
        "completions/clipped_ratio": 0.0,
    }


def frozen(**changes: float) -> list[Row]:
    last = {"length": 31.0, "alive": False, "reward": 0.35, "entropy": 0.001} | changes
    return [other(i) for i in range(30)] + [other(i, **last) for i in range(20)]  # type: ignore[arg-type]


def test_another_trainers_log_shows_it_by_lengths_contrast_and_reward_that_all_stop() -> None:
    finding = diagnosed(frozen()).findings[0]
    assert (finding.code, finding.severity) == (CODE, "critical")
    assert finding.first_step == 31


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": 0.99},  # it has arrived
        {"length": 2.0},  # labels: of one length whatever they say
        {"entropy": 0.5},  # answers are drawn, not recited
        {"alive": True},  # rewards still differ
        {"reward": 0.0},  # nothing can be earned
    ],
)
def test_another_trainers_log_without_one_of_these_does_not(changes: dict[str, float]) -> None:
    assert CODE not in codes(frozen(**changes))


def test_answers_that_all_run_into_the_limit_are_not_one_answer() -> None:
    rows = [row | {"completions/clipped_ratio": 1.0} if row["reward_std"] == 0 else row for row in frozen(length=512.0)]
    assert CODE not in codes(rows)


def small_batches(n: int, wrong: int) -> list[Row]:
    """Two prompts a step, read well; then steps whose right answers are alike, among them some that are wrong."""
    rows = [own(0.5, 0.7, 0.65, 0.5, 0.7) for _ in range(n)]
    return rows + [own(1.0, 0.0, 0.0, 0.5 if i % 2 and i // 2 < wrong else 1.0, 0.9) for i in range(4 * wrong)]


def test_batches_whose_right_answers_are_all_alike_say_nothing_and_one_or_two_others_little() -> None:
    assert CODE not in codes(small_batches(8, 1))
    assert CODE not in codes([*small_batches(8, 0), *[own(1.0, 0.0, 0.0, 1.0, 0.9)] * 4])


def test_many_small_batches_in_which_a_wrong_answer_is_given_to_all_are_a_constant_answer() -> None:
    rows = small_batches(16, 0) + [own(1.0, 0.0, 0.0, 0.5 if i % 2 else 1.0, 0.4) for i in range(60)]
    assert codes(rows)[0] == CODE
