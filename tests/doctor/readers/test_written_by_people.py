"""Tables as people write them in reports: in other languages, with ranges, arrows and remarks in their cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from levelhead.doctor.readers.keys import KeyMap, in_english
from levelhead.doctor.readers.sources import read
from levelhead.doctor.readers.values import NotANumberError, end_of_span, parse_number
from levelhead.errors import InputError


def readings(tmp_path: Path, text: str, *names: str) -> dict[str, list[tuple[float, float]]]:
    path = tmp_path / "log.md"
    path.write_text(text, encoding="utf-8")
    history = read(path).history
    return {name: list(zip(history.series(name).steps, history.series(name).values, strict=True)) for name in names}


@pytest.mark.parametrize(
    ("heading", "signal"),
    [
        ("平均生成长度", "completions/mean_length"),
        ("截断比", "completions/clipped_ratio"),
        ("零方差组比例", "frac_reward_zero_std"),
        ("组内奖励标准差", "reward_std"),
        ("梯度范数", "grad_norm"),
        ("KL 散度", "kl"),
        ("策略熵", "entropy"),
        ("验证准确率", "eval/accuracy"),
        ("格式奖励", "rewards/format/mean"),
        ("步数", "step"),
    ],
)
def test_chinese_headings_lead_to_the_same_signals(heading: str, signal: str) -> None:
    target = KeyMap("text").lookup(heading)
    assert target is not None
    assert target.name == signal


def test_a_heading_with_an_unknown_word_means_nothing() -> None:
    assert in_english("平均生成长度") == "mean completion length"
    assert in_english("食堂奖励") is None
    assert KeyMap("text").lookup("食堂奖励") is None


@pytest.mark.parametrize(
    ("heading", "means"),
    [("mixed grp frac", True), ("informative_group_share", True), ("mixed precision", False), ("active ratio", False)],
)
def test_a_share_of_groups_with_contrast_is_one_minus_that_without(heading: str, *, means: bool) -> None:
    target = KeyMap("text").lookup(heading)
    assert (target is not None and target.name == "frac_reward_zero_std") == means
    if target is not None:
        assert target.apply(0.3) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("0.06→0.25", 0.25), ("0.06 -> 0.25", 0.25), ("0.7-0.8", 0.75), ("降到0.4-0.5", 0.45), ("spike到15-23", 19.0),
        ("1e-5", None), ("-0.3", None), ("2026-11-25", None), ("12", None), ("a-b", None),
    ],
)  # fmt: skip
def test_a_span_ends_where_its_arrow_points_and_a_range_is_its_middle(cell: str, value: float | None) -> None:
    assert end_of_span(cell) == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "value"), [("0.676 (cap fired)", 0.676), ("3e-4\uff08上限\uff09", 3e-4), ("+0.034 (best)", 0.034)]
)
def test_a_remark_behind_a_number_is_left_out(text: str, value: float) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", ["3 (of 8)x", "f(3)", "1.2.3 (a)"])
def test_what_only_looks_like_a_number_with_a_remark_is_none(text: str) -> None:
    with pytest.raises(NotANumberError):
        parse_number(text)


def test_windows_of_steps_end_where_they_end(tmp_path: Path) -> None:
    text = "| 阶段 | step | reward | grad_norm |\n|---|---|---|---|\n"
    text += "| 正常 | 1-100 | 0.06→0.25 | 2-4 |\n| 崩溃 | 100-200 | 0.25-0.15 | 5 |\n"
    assert readings(tmp_path, text, "reward", "grad_norm") == {
        "reward": [(100, 0.25), (200, 0.2)],
        "grad_norm": [(100, 3.0), (200, 5.0)],
    }
    text = "| 窗口 | reward | answer | kl |\n|---|---|---|---|\n"
    text += "| 1-30 | 0.2 | 0.1 | 0.01 |\n| 31-60 | 0.3 | 0.2 | 0.02 |\n"
    assert readings(tmp_path, text, "reward", "kl") == {
        "reward": [(30, 0.2), (60, 0.3)],
        "kl": [(30, 0.01), (60, 0.02)],
    }


def test_a_score_of_answers_is_no_sample_where_rows_are_steps(tmp_path: Path) -> None:
    steps = (
        "| step | answer | entropy | resp_len |\n|---|---|---|---|\n| 1 | 0.4 | 1.6 | 441 |\n| 5 | 0.5 | 1.4 | 266 |\n"
    )
    assert readings(tmp_path, steps, "entropy")["entropy"] == [(1, 1.6), (5, 1.4)]
    samples = (
        "| question | answer | reward | length |\n|---|---|---|---|\n| 1+1 | 2 | 1.0 | 3 |\n| 2+2 | 4 | 1.0 | 3 |\n"
    )
    path = tmp_path / "samples.md"
    path.write_text(samples, encoding="utf-8")
    with pytest.raises(InputError, match="no training metrics"):
        read(path)


def test_names_between_slashes_head_the_numbers_below(tmp_path: Path) -> None:
    text = "Per-step (step / reward / entropy / kl):\n```\n 10  0.25  0.58  0.004\n"
    text += " 70  0.21  0.61  2.301   <- lone spike\n```\n"
    assert readings(tmp_path, text, "reward", "kl") == {
        "reward": [(10, 0.25), (70, 0.21)],
        "kl": [(10, 0.004), (70, 2.301)],
    }


@pytest.mark.parametrize(
    "heading",
    ["| 지표 | 초반 | 최근(붕괴 후) | 변화 |", "| 指标 | 初始 | 最终 | 变化 |", "| metric | start | end | change |"],
)
def test_before_and_after_are_statistics_in_any_language(tmp_path: Path, heading: str) -> None:
    text = f"{heading}\n|---|---:|---:|---:|\n| reward | 0.60 | 0.39 | -35% |\n"
    text += "| **kl** | 0.0036 | **0.2392** | +6,512% |\n"
    path = tmp_path / "log.md"
    path.write_text(text, encoding="utf-8")
    log = read(path)
    assert log.summary
    assert log.history.series("kl").values == [0.0036, 0.2392]
    assert log.history.series("reward").values == [0.60, 0.39]


def test_the_rewards_of_a_group_give_its_mean_and_spread(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "rewards": [0.0, 0.0, 0.0, 0.0], "loss": 0.0},
        {"step": 2, "rewards": [0.0, 1.0, 0.0, 1.0], "loss": 0.1},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    history = read(path).history
    assert history.series("reward").values == [0.0, 0.5]
    # Deviations of 1/2 from the mean, four of them over three: sqrt(1/3).
    assert history.series("reward_std").values == [0.0, pytest.approx((1 / 3) ** 0.5)]


@pytest.mark.parametrize(
    ("cell", "value"), [("5 (0.833333)", 0.833333), ("9/22 (41%)", 0.41), ("10% (of 86)", 0.1), ("12 (3.5)", None)]
)
def test_a_count_with_its_share_is_the_share(cell: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(NotANumberError):
            parse_number(cell)
    else:
        assert parse_number(cell) == pytest.approx(value)


def test_a_clip_ratio_that_no_update_has_is_of_cut_answers(tmp_path: Path) -> None:
    rows = "".join(f"| {i} | 0.2 | 0.{90 + i} |\n" for i in range(6))
    names = ("completions/clipped_ratio", "clip_ratio/region_mean")
    cut, clipped = (
        readings(tmp_path, f"| step | reward | clip_ratio |\n|---|---|---|\n{rows}", *names)[n] for n in names
    )
    assert len(cut) == 6
    assert not clipped


def test_cells_of_several_readings_are_so_many_columns(tmp_path: Path) -> None:
    text = (
        "| step | train reward | heldout d4 / d8 / d12 |\n|---|---|---|\n"
        "| 0 | 0.80 | 0.75 / 0.16 / 0.05 |\n| 80 | 1.20 | **0.66 / 0.11 / 0.02** |\n"
    )
    levels = [f"eval/d{n}/score" for n in (4, 8, 12)]
    of = readings(tmp_path, text, "reward", *levels)
    assert of["reward"] == [(0, 0.8), (80, 1.2)]
    assert [of[name] for name in levels] == [[(0, 0.75), (80, 0.66)], [(0, 0.16), (80, 0.11)], [(0, 0.05), (80, 0.02)]]


def test_a_dictionary_that_the_end_of_its_block_cuts_is_the_next_step(tmp_path: Path) -> None:
    row = '{"loss": 0.1, "reward": %s, "kl": %s, "reward_std": 0.1, "global_step/max_steps": "1/9"'
    text = f'```\n{row % (0.6, 0.0)}}}\n{(row % (0.5, 0.4)).rsplit(",", 1)[0]}, "epo\n```\n'
    assert readings(tmp_path, text, "reward", "kl") == {"reward": [(1, 0.6), (2, 0.5)], "kl": [(1, 0.0), (2, 0.4)]}
