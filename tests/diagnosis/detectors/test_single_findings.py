"""What each detector must see, and must not, in the fewest rows that say it."""

from __future__ import annotations

import math
import random

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, Finding, diagnose

LENGTH, CUT, DEAD = "completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std"


def diagnosed(rows: list[dict[str, float]], start: int = 1) -> Diagnosis:
    history = History()
    for i, row in enumerate(rows):
        history.append(start + i, row)
    return diagnose(history)


def finding(diagnosis: Diagnosis, code: str) -> Finding | None:
    return next((f for f in diagnosis.findings if f.code == code), None)


def first(rows: list[dict[str, float]], start: int = 1) -> str:
    return diagnosed(rows, start).findings[0].code


def test_one_ordinary_row_is_healthy_and_not_very_sure() -> None:
    diagnosis = diagnosed([{"reward": 0.4, "loss": 0.0, "grad_norm": 0.3, "entropy": 0.4, "kl": 0.0005}])
    assert not diagnosis.faulty
    assert diagnosis.findings[0].confidence < 0.7


def test_a_loss_of_zero_is_cosmetic() -> None:
    rows = [
        {"loss": 0.0, "grad_norm": 0.1 + 0.01 * i, "reward": 1.7 + 0.02 * (i % 3), "reward_std": 0.6} for i in range(8)
    ]
    assert not diagnosed(rows).faulty


def test_a_whole_batch_deviation_does_not_hide_dead_groups() -> None:
    row = {
        "reward": 3.0,
        "reward_std": 0.0,
        DEAD: 1.0,
        "rewards/judge/mean": -3.0,
        "rewards/judge/std": 5.1,
        "grad_norm": 0.0,
    }
    assert first([row]) == "reward-dead-groups"


def test_zero_rewards_at_the_start_are_no_verdict_once_they_end() -> None:
    rows = [{"reward": 0.0, "reward_std": 0.0} for _ in range(10)]
    rows += [{"reward": 0.1 + 0.02 * i, "reward_std": 0.3} for i in range(20)]
    assert not diagnosed(rows).faulty


def test_all_failed_and_all_solved_are_told_apart() -> None:
    failed = [{"reward": -1.0, "reward_std": 0.0, "grad_norm": 0.0} for _ in range(5)]
    solved = [{"reward": 1.0, "reward_std": 0.0, "grad_norm": 0.0} for _ in range(5)]
    assert first(failed) == "no-learning-signal-all-zero-reward"
    assert first(solved) == "saturated-all-one-reward"


def test_zero_gradients_under_dead_groups_are_not_a_lost_signal() -> None:
    rows = [{"reward": 0.5, DEAD: 1.0, "reward_std": 0.0, "grad_norm": 0.0} for _ in range(8)]
    assert finding(diagnosed(rows), "zero-gradient-despite-signal") is None


def test_differences_over_a_batch_do_not_prove_contrast_within_groups() -> None:
    rows = [{"reward": 0.5, "reward/max": 1.0, "reward/min": 0.0, "grad_norm": 0.0} for _ in range(8)]
    assert finding(diagnosed(rows), "zero-gradient-despite-signal") is None
    rows = [{"reward": 0.5, "reward_std": 0.4, "grad_norm": 0.0} for _ in range(8)]
    assert first(rows) == "zero-gradient-despite-signal"


def test_kl_that_is_highest_at_the_first_row_is_a_mismatch_and_not_drift() -> None:
    rows = [{"kl": 2.0 - 0.01 * i, "reward": 0.4 + 0.01 * (i % 3), "grad_norm": 0.5} for i in range(20)]
    drift = [{"kl": 0.001 * 1.5**i, "reward": 0.4 + 0.01 * (i % 3), "grad_norm": 0.5} for i in range(20)]
    assert first(rows) == "logprob-mismatch"
    assert first(drift) == "kl-blowup"


def test_an_excerpt_from_late_in_a_run_has_no_first_row() -> None:
    rows = [{"kl": 2.5, "reward": 0.4 + 0.01 * (i % 3), "grad_norm": 0.5} for i in range(20)]
    assert first(rows, start=4000) == "kl-blowup"


def test_an_excerpt_is_known_by_its_epochs_too() -> None:
    history = History()
    for i in range(20):
        history.append(i + 1, {"kl": 2.5, "reward": 0.4 + 0.01 * (i % 3), "grad_norm": 0.5})
    assert diagnose(history).findings[0].code == "logprob-mismatch"
    history.epochs = (0.31, 0.35)
    assert diagnose(history).findings[0].code == "kl-blowup"


@pytest.mark.parametrize(("after", "verdict"), [(0.4, "undecided"), (0.1, "critical")])
def test_a_spike_is_judged_by_what_came_after_it(after: float, verdict: str) -> None:
    rows = []
    for i in range(40):
        reward = (0.4 if i <= 20 else after) + 0.01 * (i % 3)
        gradient = 12.0 if i == 20 else 0.4 + 0.02 * (i % 4)
        rows.append(
            {
                "reward": reward,
                "reward_std": 0.3,
                "grad_norm": gradient,
                "entropy": 0.5 if i <= 20 else 0.5 + 2 * (0.4 - after),
            }
        )
    diagnosis = diagnosed(rows)
    spike = finding(diagnosis, "gradient-spike")
    assert diagnosis.verdict == verdict
    if verdict == "critical":
        assert spike is not None
        assert (spike.severity, spike.first_step) == ("critical", 21)


def test_importance_ratios_near_zero_are_a_mismatch() -> None:
    row = {"sampling/sampling_logp_difference/mean": 0.8, "sampling/importance_sampling_ratio/mean": 3e-7}
    row |= {"reward": 0.1, "reward_std": 0.1, "grad_norm": 5e-6}
    diagnosis = diagnosed([row])
    assert diagnosis.findings[0].code == "logprob-mismatch"
    assert diagnosis.verdict == "critical"


def test_small_differences_between_engines_are_normal() -> None:
    rows = [
        {"sampling/sampling_logp_difference/mean": 0.015, "mismatch/prob_diff_mean": 0.006, "reward": 0.4}
        for _ in range(9)
    ]
    assert not diagnosed(rows).faulty


def test_one_skipped_step_is_a_note() -> None:
    rows = [{"grad_norm": math.nan if i == 20 else 0.3, "reward": 0.3 + 0.005 * i} for i in range(60)]
    diagnosis = diagnosed(rows)
    assert not diagnosis.faulty


def test_nan_to_the_end_is_critical_from_its_first_row() -> None:
    rows = [{"loss": 0.1 if i < 12 else math.nan, "reward": 0.3} for i in range(20)]
    found = diagnosed(rows).findings[0]
    assert (found.code, found.severity, found.first_step) == ("nonfinite", "critical", 13)


def test_a_kl_column_of_nan_alone_is_nonfinite() -> None:
    rows = [{"kl": math.nan, "reward": 6.0 + i, "reward_std": 15.0, "loss": -0.1} for i in range(4)]
    assert first(rows) == "nonfinite"


def test_a_gradient_of_millions_needs_no_history() -> None:
    assert first([{"grad_norm": 111.0}, {"grad_norm": 5.4e7}]) == "gradient-spike"


def test_format_up_and_accuracy_down_is_hacking_in_three_rows() -> None:
    rows = [
        {"rewards/accuracy/mean": a, "rewards/format/mean": f, "reward": a + f}
        for a, f in ((0.16, 0.48), (0.12, 0.55), (0.06, 0.86))
    ]
    assert first(rows) == "reward-hacking"


def test_a_negative_or_constant_zero_entropy_is_no_entropy() -> None:
    for value in (-0.4, 0.0):
        rows = [{"entropy": value * (1 + 0.1 * i), "reward": 0.4, "reward_std": 0.3} for i in range(10)]
        assert finding(diagnosed(rows), "entropy-collapse") is None


def test_an_entropy_bonus_that_lowers_entropy_is_named() -> None:
    entropy, rows = 2.0, []
    for i in range(48):
        coef = 0.001 if i < 24 else 0.02
        entropy -= 0.002 if i < 24 else 0.05
        rows.append({"entropy": entropy, "entropy_coef": coef, "reward": 0.4 + 0.01 * (i % 3)})
    assert finding(diagnosed(rows), "entropy-sign") is not None
    for name in ("audit/entropy/coef", "audit/entropy/math/coef"):
        audited = [{name: -0.01, "entropy": 1.0, "reward": 0.4} for _ in range(3)]
        assert first(audited) == "entropy-sign"
        told = [row | {f"{name}_error": 1e-4} for row in audited]
        assert first(told) == "entropy-sign"


def test_a_coefficient_within_its_error_accuses_nobody() -> None:
    name = "audit/entropy/math/coef"
    rounded = [{name: -0.002, f"{name}_error": 0.001, "entropy": 1.0, "reward": 0.4} for _ in range(3)]
    assert finding(diagnosed(rounded), "entropy-sign") is None


@pytest.mark.parametrize("beyond", [[0.02] * 20, [0.0] * 11 + [0.03] + [0.0] * 8])
def test_a_difference_that_rounding_does_not_explain_is_a_mismatch(beyond: list[float]) -> None:
    rows = [
        {"sampling/logp_difference_beyond_rounding": b, "reward": 0.4 + 0.01 * (i % 3), "reward_std": 0.3}
        for i, b in enumerate(beyond)
    ]
    found = finding(diagnosed(rows), "logprob-mismatch")
    assert found is not None
    assert found.severity == "critical"
    assert found.first_step == 1 + next(i for i, b in enumerate(beyond) if b)
    none = [row | {"sampling/logp_difference_beyond_rounding": 0.0} for row in rows]
    assert finding(diagnosed(none), "logprob-mismatch") is None


def test_tasks_that_part_ways_are_an_imbalance() -> None:
    rows = [
        {
            "reward/a": 0.2 + 0.01 * i,
            "reward/b": 0.8 - 0.012 * i + 0.01 * (i % 2),
            "reward": 0.5,
            "merge/cosine/a/b": -0.4,
        }
        for i in range(50)
    ]
    codes = {f.code for f in diagnosed(rows).findings}
    assert {"task-imbalance", "gradient-conflict"} <= codes


def test_advantages_pinned_by_groups_of_two() -> None:
    rows = [{"advantages/max": 0.7071, "advantages/min": -0.7071, "reward": 0.3, DEAD: 0.6} for _ in range(8)]
    codes = {f.code for f in diagnosed(rows).findings}
    assert {"advantage-two-valued", "group-size-too-small"} <= codes


def test_validity_lost_after_an_update_is_update_collapse() -> None:
    rows = [{"validity": v, "reward": 0.2 * v} for v in (0.95, 0.9, 0.3, 0.05, 0.02, 0.0)]
    found = diagnosed(rows).findings[0]
    assert (found.code, found.first_step) == ("update-collapse", 3)


def test_validity_that_halves_by_chance_every_few_batches_is_no_update_collapse() -> None:
    valid = (0.41, 0.38, 0.16, 0.34, 0.41, 0.22, 0.09, 0.34, 0.41, 0.28, 0.25, 0.34, 0.41, 0.41)
    for n in range(6, len(valid) + 1):
        found = finding(diagnosed([{"validity": v, "reward": v - 0.5} for v in valid[:n]]), "update-collapse")
        assert found is None or found.severity == "info", n


def test_one_reading_is_no_certain_update_collapse() -> None:
    found = finding(diagnosed([{"validity": v, "reward": v - 0.5} for v in (0.41, 0.38, 0.16)]), "update-collapse")
    assert found is not None
    assert found.severity == "warning"


def test_a_format_reward_of_zero_beside_right_answers_is_a_template_mismatch() -> None:
    rows = [{"rewards/accuracy/mean": 0.4, "rewards/format/mean": 0.0, "reward": 0.4} for _ in range(8)]
    assert finding(diagnosed(rows), "template-mismatch") is not None


def test_a_reward_function_that_fails_is_the_judge() -> None:
    rows = [{"reward": 0.4 + 0.01 * (i % 4), "reward/errors": 0.0 if i < 10 else 0.6} for i in range(20)]
    found = diagnosed(rows).findings[0]
    assert (found.code, found.first_step) == ("judge-failure", 11)


def test_rollouts_many_updates_old_are_stale() -> None:
    rows = [{"off_policy/mean": 20.0, "reward": 0.4 - 0.01 * i, "entropy": 0.5} for i in range(15)]
    assert finding(diagnosed(rows), "stale-policy") is not None


@pytest.mark.parametrize("clipped", [0.0, 0.1])
def test_a_batch_drawn_one_update_ahead_is_no_fault(clipped: float) -> None:
    """The first one is drawn by the weights that train on it, and its log-probabilities are those of the trainer."""
    metric, share = "sampling/sampling_logp_difference/mean", "clip_ratio/region_mean"
    rows = [
        {
            "off_policy/mean": float(i > 0),
            metric: 0.3 * (i > 0),
            share: clipped * (i > 0),
            "reward": 0.4 + 0.01 * (i % 2),
        }
        for i in range(30)
    ]
    diagnosis = diagnosed(rows)
    for code in ("stale-policy", "logprob-mismatch"):
        found = finding(diagnosis, code)
        assert found is None or found.confidence < 0.5
    apart = [{**row, metric: 0.3, share: 0.0} for row in rows]
    assert finding(diagnosed(apart), "logprob-mismatch") is not None


def test_growth_comes_before_the_cutting_that_follows_from_it() -> None:
    rows = [
        {LENGTH: 200 * 1.12**i, CUT: min(0.9, max(0.0, 0.06 * (i - 14))), "reward": 0.3 + 0.01 * (i % 3)}
        for i in range(26)
    ]
    diagnosis = diagnosed(rows)
    codes = [f.code for f in diagnosis.findings]
    assert codes[0] == "length-runaway"
    assert "length-truncation" in codes
    assert "length-truncation" in diagnosis.findings[0].explains


def test_answers_that_are_all_cut_from_the_first_row_never_end() -> None:
    rows = [{LENGTH: 1024.0, "completions/min_length": 1024.0, "completions/max_length": 1024.0, CUT: 1.0,
             "completions/mean_terminated_length": 0.0, "reward": 0.1 + 0.01 * (i % 3)} for i in range(6)]  # fmt: skip
    assert first(rows) == "eos-never"


def test_answers_that_are_all_cut_at_a_short_limit_are_cut_before_they_never_end() -> None:
    rows = [{LENGTH: 256.0, CUT: 1.0, "reward": 0.1 + 0.01 * (i % 2)} for i in range(20)]
    assert first(rows) == "length-truncation"


def test_a_reward_that_was_earned_and_stays_away_is_gone() -> None:
    lost = [{"reward": 0.04}, *({"reward": 0.0} for _ in range(10))]
    gone = finding(diagnosed(lost), "no-learning-signal-all-zero-reward")
    assert gone is not None
    assert gone.severity != "info"
    assert gone.first_step == 2
    rare = [{"reward": 0.04 * (i % 3 == 0)} for i in range(12)] + [{"reward": 0.0} for _ in range(6)]
    assert finding(diagnosed(rare), "no-learning-signal-all-zero-reward") is None


@pytest.mark.parametrize(("cut", "told"), [(0.5, False), (1.0, True)])
def test_answers_that_are_nearly_all_cut_are_a_doubt_though_the_reward_rises(cut: float, told: bool) -> None:
    rows = [{LENGTH: 200.0 + i % 3, CUT: cut, "reward": 0.1 + 0.02 * i + 0.01 * (i % 3)} for i in range(40)]
    diagnosis = diagnosed(rows)
    assert not diagnosis.faulty
    assert (finding(diagnosis, "length-truncation") is not None) == told


def test_one_batch_without_any_reward_is_a_doubt_and_no_verdict() -> None:
    diagnosis = diagnosed([{"reward": 0.0, "loss": 0.0, LENGTH: 201.2}])
    assert not diagnosis.faulty
    assert finding(diagnosis, "no-learning-signal-all-zero-reward") is not None


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_faster_steps_by_caching_are_fine(factor: float) -> None:
    rows = [{"step_time": 30.0 if i < 5 else 30.0 / factor, "reward": 0.3 + 0.01 * (i % 3)} for i in range(15)]
    assert finding(diagnosed(rows), "step-time-collapse") is None


def supervised(rows: int) -> list[dict[str, float]]:
    return [{"loss": 2.5 * 0.93**i + 0.05, "entropy": 2.4 * 0.93**i + 0.05, "grad_norm": 1.0} for i in range(rows)]


def test_entropy_that_falls_with_a_supervised_loss_is_learning() -> None:
    assert not diagnosed(supervised(60)).faulty
    policy = [{**row, "loss": 0.01 * (-1) ** i} for i, row in enumerate(supervised(60))]
    assert first(policy) == "entropy-collapse"


def test_lengths_that_jump_from_row_to_row_have_not_run_away() -> None:
    rng = random.Random(3)
    for n in (8, 13, 20) * 15:
        jumpy = [{"reward": rng.gauss(-2, 3), LENGTH: rng.uniform(200, 1200)} for _ in range(n)]
        assert not diagnosed(jumpy).faulty
    steady = [{"reward": rng.gauss(-2, 3), LENGTH: 250.0 * 1.2**i, CUT: 0.04 * i} for i in range(13)]
    assert first(steady) == "length-runaway"


def test_a_coarse_log_has_no_row_from_before_the_first_update() -> None:
    def logged(every: int) -> float:
        history = History()
        for i in range(20):
            history.append(every * (i + 1), {"kl": 0.6 + 0.05 * (i % 2), "reward": 0.4 + 0.1 * (i % 3)})
        found = finding(diagnose(history), "logprob-mismatch")
        return found.confidence if found else 0.0

    assert logged(1) > 0.4 > logged(25)


def test_a_kl_far_from_zero_in_the_only_row_is_a_mismatch() -> None:
    row = {"loss": 0.13, "reward": 0.4, "reward_std": 0.2, "kl": 3.2, "grad_norm": 1.1}
    assert first([row]) == "logprob-mismatch"
    assert diagnosed([row], start=400).findings[0].code != "logprob-mismatch"
    assert not diagnosed([{**row, "kl": 0.02}]).faulty


def test_exact_stillness_stands_in_for_a_contrast_that_is_not_logged() -> None:
    rng = random.Random(0)
    moving = [{"reward": rng.random(), "loss": rng.gauss(0, 0.1), "grad_norm": 0.1 + rng.random()} for _ in range(15)]
    still = [{"reward": 0.6, "loss": 0.0, "grad_norm": 0.0} for _ in range(20)]
    found = diagnosed(moving + still).findings[0]
    assert (found.code, found.first_step) == ("deadlock", 16)
    assert first(still) == "reward-dead-groups"
    assert not diagnosed([{**row, "loss": 0.0} for row in moving]).faulty


def test_a_run_that_arrives_at_its_maximum_is_no_deadlock_and_one_that_leaps_is() -> None:
    def run(before: list[float]) -> list[dict[str, float]]:
        rows = [
            {"reward": r, "reward_std": 0.3 * (1.05 - r), "loss": 0.01, "grad_norm": 0.2, "entropy": 2 - 0.08 * i}
            for i, r in enumerate(before)
        ]
        top = {"reward": 1.0, "reward_std": 0.0, "loss": 0.0, "grad_norm": 0.0}
        return rows + [{**top, "entropy": 0.4 * 0.9**i} for i in range(20)]

    arrived = diagnosed(run([0.52, 0.7, 0.83, 0.9, 0.96, 0.97, 0.99, 0.96, 0.97, 0.99, 0.98, 0.99]))
    assert all(f.code != "deadlock" for f in arrived.findings if f.severity != "info")
    assert diagnosed(run([0.0, 0.0, 0.0, 0.4, 0.2, 0.5, 0.3, 0.5])).findings[0].code == "deadlock"


def test_a_kl_far_below_zero_is_of_tokens_drawn_otherwise() -> None:
    rows = [{"loss": -0.4, "reward": 0.3, "reward_std": 0.3, "kl": -0.4 * i} for i in range(14)]
    assert first(rows) == "logprob-mismatch"
    noise = [{**row, "kl": 0.01 * (-1) ** i} for i, row in enumerate(rows)]
    assert not diagnosed(noise).faulty


def test_answers_of_no_words_are_a_collapse_unless_they_are_rewarded() -> None:
    rows = [{"reward": 0.001 * (i % 2), "reward_std": 0.01, LENGTH: 1 + 0.1 * (i % 2), "loss": 0.01} for i in range(14)]
    assert first(rows) == "length-collapse"
    assert not diagnosed([{**row, "reward": 0.6} for row in rows]).faulty


def test_a_mean_that_is_no_whole_number_is_not_the_limit() -> None:
    rows = [{"reward": 0.3 + 0.01 * i, "reward_std": 0.3, LENGTH: 512.3} for i in range(8)]
    assert not diagnosed(rows).faulty
    assert first([{**row, "reward": 0.3, LENGTH: 512.0} for row in rows]) in ("eos-never", "length-truncation")


def test_a_difference_to_the_sampler_that_comes_with_clipping_is_of_a_policy_that_moved() -> None:
    metric = "sampling/sampling_logp_difference/mean"
    rows = [
        {"reward": 0.3 - 0.005 * i, "reward_std": 0.3, metric: 0.5, "clip_ratio/region_mean": 0.2} for i in range(20)
    ]
    assert first(rows) == "stale-policy"
    assert first([{**row, "clip_ratio/region_mean": 0.0} for row in rows]) == "logprob-mismatch"


def test_a_reward_at_its_usual_floor_is_no_judge_that_failed() -> None:
    rng = random.Random(3)
    rows = [{"reward": 0.4 + 0.05 * rng.random(), DEAD: 0.2, LENGTH: 300 + rng.random()} for _ in range(30)]
    low = [{"reward": 0.004 * rng.random(), DEAD: 0.5, LENGTH: 300 + rng.random()} for _ in range(20)]
    blank = [{"reward": 0.0, DEAD: 1.0, LENGTH: 300 + rng.random()} for _ in range(5)]
    assert finding(diagnosed(rows[:10] + low + blank + low), "judge-failure") is None
    assert first(rows[:20] + blank + rows[20:]) == "judge-failure"


def test_growth_begins_where_it_leaves_the_level_that_it_is_measured_from() -> None:
    lengths = [6.2, 2.1, 2.2, 2.3, 2.2, 2.3, 2.4, 2.2, 7, 9, 11, 13, 12, 13, 13, 13, 12, 13, 13, 13]
    rows = [{"reward": 0.4 - 0.01 * i, "reward_std": 0.2, LENGTH: value} for i, value in enumerate(lengths)]
    found = finding(diagnosed(rows), "length-runaway")
    assert found is not None
    assert found.first_step == 9


def test_a_reward_that_goes_blank_under_unchanged_answers_is_the_judge_also_before_it_comes_back() -> None:
    rng = random.Random(5)
    rows = [
        {"reward": 0.7 + 0.05 * rng.random(), "reward_std": 0.1, DEAD: 0.2, "entropy": 1.5 + 0.1 * rng.random(),
         LENGTH: 80 + 5 * rng.random(), "loss": rng.gauss(0, 0.1), "grad_norm": 1 + rng.random()}
        for _ in range(24)
    ]  # fmt: skip
    nothing = {"reward": 0.0, "reward_std": 0.0, DEAD: 1.0, "loss": 0.0, "grad_norm": 0.0}
    away = rows[:18] + [{**row, **nothing} for row in rows[18:]]
    assert first(away) == "judge-failure"
    broken = [{**row, "entropy": 0.02, LENGTH: 3.0} for row in away[18:]]
    assert first(rows[:18] + broken) in ("catastrophic-update", "deadlock", "entropy-collapse", "length-collapse")


def test_a_few_batches_that_happen_to_be_cut_are_no_truncation() -> None:
    cut = [0.22, 0.29, 0.32, 0.19, 0.16, 0.22, 0.41, 0.51, 0.38, 0.28]
    rows = [{"reward": -0.3 + 0.01 * (-1) ** i, "reward_std": 0.3, CUT: share} for i, share in enumerate(cut)]
    assert not any(diagnosed(rows[:n]).faulty for n in range(1, 11))


def flat(n: int = 300, **more: float) -> list[dict[str, float]]:
    rng = random.Random(3)
    return [{"reward": rng.gauss(0.5, 0.04), "reward_std": 0.35, "frac_reward_zero_std": 0.2, **more} for _ in range(n)]


def test_a_flat_reward_says_nothing_where_the_log_starts_later() -> None:
    history = History()
    for i, row in enumerate(flat()):
        history.append(700 + i, row)
    assert not diagnose(history).faulty
    assert diagnosed(flat()).verdict == "warning"


def test_a_flat_reward_says_little_where_prompts_are_chosen_by_it() -> None:
    assert not diagnosed(flat(**{"curriculum/success/a": 0.5})).faulty


def test_the_reward_of_all_that_was_drawn_counts_where_groups_are_redrawn() -> None:
    rows = [row | {"dynamic_sampling/reward": 0.2 + 0.6 * i / 300} for i, row in enumerate(flat())]
    diagnosis = diagnosed(rows)
    assert not diagnosis.faulty
    assert "reward-rises" in {argument.key for argument in diagnosis.findings[0].evidence}


def test_a_flat_reward_counts_once_the_schedule_is_done() -> None:
    noise = random.Random(3)
    rows = [{"reward": 0.35 + 0.08 * noise.gauss(0, 1), "learning_rate": 1e-5 * (30 - i) / 30} for i in range(31)]
    done = diagnosed(rows)
    assert done.findings[0].code == "no-improvement"
    assert "schedule-done" in {argument.key for argument in done.findings[0].evidence}
    assert not diagnosed([{**row, "learning_rate": 1e-5} for row in rows]).faulty


def test_few_rows_of_a_long_run_show_that_it_stands_still() -> None:
    history = History()
    for step, reward in ((10, 0.13), (20, 0.14), (30, 0.124), (1250, 0.135), (1260, 0.125)):
        history.append(step, {"reward": reward, "loss": -0.1})
    assert diagnose(history).findings[0].code == "no-improvement"


def test_held_out_scores_that_stand_still_are_worth_more_than_noisy_rewards() -> None:
    noise = random.Random(1)
    history = History()
    for step in range(0, 101, 4):
        history.append(step, {"reward": 0.4 + 0.18 * noise.gauss(0, 1)})
        if step % 12 == 0:
            history.append(step, {"eval/pass@1": 0.3 + 0.02 * noise.gauss(0, 1)})
    found = diagnose(history).findings[0]
    assert found.code == "no-improvement"
    assert "held-out-flat" in {argument.key for argument in found.evidence}


def test_gradients_that_grow_while_what_was_gained_is_lost() -> None:
    reward_trend = [0.45 + 0.03 * i for i in range(13)] + [0.82 - 0.022 * i for i in range(15)]
    rewards = [level + 0.01 * (-1) ** i for i, level in enumerate(reward_trend)]
    rows = [{"reward": r, "grad_norm": 4.0 * 1.15**i} for i, r in enumerate(rewards)]
    assert first(rows) == "gradient-spike"
    kept = [{"reward": max(rewards[: i + 1]), "grad_norm": 4.0 * 1.15**i} for i, r in enumerate(rewards)]
    assert not diagnosed(kept).faulty


def test_a_reward_that_falls_is_no_entropy_explosion_where_entropy_is_low() -> None:
    rows = [{"reward": 0.8 - 0.04 * i, "entropy": 0.05 + 0.008 * i} for i in range(24)]
    assert first(rows) != "entropy-explosion"
    assert first([{**row, "entropy": 10 * row["entropy"]} for row in rows]) == "entropy-explosion"


def test_an_entropy_summed_over_tokens_is_no_entropy_a_token() -> None:
    rows = [{"reward": 0.1 + 0.02 * i, "entropy": 6800.0 + 10 * (i % 5), "grad_norm": 1.0} for i in range(20)]
    assert finding(diagnosed(rows), "entropy-explosion") is None


def test_hardly_any_valid_answer_is_a_template_that_does_not_fit() -> None:
    rows = [{"validity": 0.03 + 0.005 * (i % 3), "reward": 0.05 + 0.003 * (i % 2)} for i in range(7)]
    assert first(rows) == "template-mismatch"
    assert not diagnosed([{**row, "validity": 0.4} for row in rows]).faulty


def test_a_reward_for_form_alone_is_not_near_the_top() -> None:
    dead = {"reward": 0.875, "reward_std": 0.0, "rewards/accuracy/mean": 0.0, "rewards/format/mean": 0.875, "loss": 0.0}
    alive = {**dead, "reward": 0.5, "reward_std": 0.4, "rewards/format/mean": 0.5, "loss": 0.1}
    rows = [alive if i in (3, 7) else dead for i in range(12)]
    assert first(rows) == "reward-dead-groups"


def test_a_value_function_that_is_not_finite_is_told_of() -> None:
    row = {"value_loss": math.nan, "reward": 0.6, "grad_norm": 9.8, "policy_loss": -0.01}
    assert first([row]) == "nonfinite"


def test_an_excerpt_is_known_by_the_pace_of_its_epochs() -> None:
    history = History()
    epochs = (0.035, 0.037, 0.039, 0.126, 0.128)
    for step, epoch in enumerate(epochs, 1):
        history.append(step, {"kl": 0.7, "reward": 0.9, "grad_norm": 0.5})
        history.place(epoch)
    assert history.epochs == (0.035, 0.128)
    assert history.epoch_gap == pytest.approx(0.002)
    assert diagnose(history).findings[0].code != "logprob-mismatch"


def test_few_lengths_that_go_one_way_have_changed() -> None:
    lengths = [30, 34, 44, 73, 110, 150]
    rows = [{LENGTH: n, CUT: 0.005 * 2.5**i, "reward": 0.7 + 0.003 * (i % 2)} for i, n in enumerate(lengths)]
    assert first(rows) in ("length-runaway", "length-truncation")


def test_a_divergence_that_jumps_and_comes_back_again_and_again() -> None:
    rows = [{"kl": 0.003, "reward": 0.4 + 0.05 * (i % 2)} for i in range(12)]
    for i in (2, 7):
        rows[i] = {**rows[i], "kl": 11.0}
    assert first(rows) == "kl-blowup"
    learning = [{**row, "reward": 0.1 + 0.07 * i} for i, row in enumerate(rows)]
    assert not diagnosed(learning).faulty


def test_a_reward_that_rises_counts_for_less_where_nothing_held_out_does() -> None:
    def learned(held_out: float) -> float:
        rows = [{"reward": 0.3 + 0.02 * i, "eval/score": 0.5 + held_out * i + 0.01 * (i % 2)} for i in range(12)]
        return diagnosed(rows).findings[0].confidence

    assert learned(0.0) < learned(0.03)


def test_text_that_gets_worse_as_the_reward_rises() -> None:
    rows = [{"reward": min(0.99, 0.5 + 0.15 * i), "eval/perplexity": 4.4 + 1.4 * i, "kl": 0.1 * i} for i in range(6)]
    assert first(rows) == "reward-hacking"
    assert not diagnosed([{**row, "eval/perplexity": 4.4} for row in rows]).faulty


def test_advantages_that_are_the_rewards_have_no_baseline() -> None:
    levels = (0.3, 0.1, 0.25, 0.1)
    rows = [{"reward": r, "reward/max": r + 0.2, "reward/min": r - 0.2, "grad_norm": 0.01} for r in levels]
    same = [{**row, "advantages/max": row["reward/max"], "advantages/min": row["reward/min"]} for row in rows]
    assert first(same) == "group-size-too-small"
    apart = [{**row, "advantages/max": 0.2, "advantages/min": -0.2} for row in rows]
    assert first(apart) != "group-size-too-small"


def test_losses_of_exactly_zero_among_large_ones_are_batches_without_contrast() -> None:
    rows = [{"loss": 0.0 if i % 8 else 3.5, "reward": 0.0 if i % 8 else 0.125} for i in range(60)]
    assert first(rows) == "reward-dead-groups"
    cosmetic = [{"loss": 0.0 if i % 8 else 0.0001, "reward": 0.3 + 0.05 * (i % 3)} for i in range(30)]
    assert not diagnosed(cosmetic).faulty


def test_form_alone_is_nothing_learnt() -> None:
    rows = [
        {
            "reward": -0.7 + 0.02 * i,
            "rewards/format/mean": 0.02 * i,
            "rewards/answer/mean": -0.7,
            LENGTH: 256.0,
            CUT: 1.0,
        }
        for i in range(12)
    ]
    assert first(rows) in ("eos-never", "length-truncation")
    learning = [{**row, "rewards/answer/mean": -0.7 + 0.01 * i, CUT: 0.1} for i, row in enumerate(rows)]
    assert not diagnosed(learning).faulty


def test_contrast_is_judged_by_advantages_where_rewards_are_of_the_whole_batch() -> None:
    row = {"reward": 0.6, "reward/max": 1.0, "reward/min": 0.0, "advantages/max": 0.0, "advantages/min": 0.0}
    assert first([row, row, row]) == "reward-dead-groups"


def test_absurd_gradients_that_leave_no_mark_on_a_run_that_learns() -> None:
    rows = [{"reward": 0.1 + 0.02 * i, "grad_norm": 1.0 + 0.1 * (i % 3)} for i in range(40)]
    for i in (9, 20, 31):
        rows[i]["grad_norm"] = 15000.0
    assert not diagnosed(rows).faulty
    assert first([{**row, "reward": 0.1 + 0.01 * (i % 2)} for i, row in enumerate(rows)]) == "gradient-spike"


def test_answers_of_a_few_tokens_may_all_be_as_long_as_the_task_asks() -> None:
    row = {LENGTH: 8.0, "completions/min_length": 8.0, "completions/max_length": 8.0, "grad_norm": 0.5}
    rows = [{**row, "reward": 0.5 + 0.05 * (i % 3)} for i in range(12)]
    assert not diagnosed(rows).faulty
    assert diagnosed([{**row, CUT: 1.0} for row in rows]).faulty
    long = {LENGTH: 256.0, "completions/min_length": 256.0, "completions/max_length": 256.0}
    assert diagnosed([{**row, **long} for row in rows]).faulty


def test_a_third_of_a_short_log_is_no_moment() -> None:
    gradual = [0.5, 0.52, 0.5, 0.51, 0.5, 0.36, 0.2, 0.05, 0.05, 0.04]
    at_once = [0.5, 0.52, 0.5, 0.51, 0.5, 0.05, 0.04, 0.05, 0.05, 0.04]
    assert finding(diagnosed([{"reward": r} for r in gradual]), "catastrophic-update") is None
    assert first([{"reward": r} for r in at_once]) == "catastrophic-update"


def narrowing(*, cooled: bool, risen: float = 0.0) -> list[dict[str, float]]:
    """Entropy falls to a sixth; the recipe may cool the temperature from 1 to 0.4 meanwhile."""
    rng = random.Random(1)
    rows = []
    for i in range(40):
        t = i / 39
        row = {"reward": 0.3 + risen * t + rng.gauss(0, 0.06), "reward_std": 0.3, DEAD: 0.2, "grad_norm": 0.4}
        row |= {"entropy": 0.8 * math.exp(-1.8 * t), "sampling/temperature": 1.0 - 0.6 * t * cooled}
        rows.append(row)
    return rows


@pytest.mark.parametrize("risen", [0.0, 0.06])
def test_entropy_that_the_recipe_itself_takes_away_is_no_collapse(risen: float) -> None:
    assert finding(diagnosed(narrowing(cooled=False, risen=risen)), "entropy-collapse") is not None
    assert finding(diagnosed(narrowing(cooled=True, risen=risen)), "entropy-collapse") is None


def test_a_collapse_that_cooling_does_not_explain_is_named_all_the_same() -> None:
    rows = [row | {"sampling/temperature": 1.0 - 0.002 * i} for i, row in enumerate(narrowing(cooled=False))]
    rows = [row | {"entropy": row["entropy"] * math.exp(-0.06 * i)} for i, row in enumerate(rows)]
    assert finding(diagnosed(rows), "entropy-collapse") is not None


def test_answers_that_all_stand_at_the_limit_are_cut_and_their_one_length_is_no_second_finding() -> None:
    lengths = dict.fromkeys((LENGTH, "completions/min_length", "completions/max_length"), 256.0)
    rows = [{"reward": 0.2 + 0.01 * (i % 3), **lengths, CUT: 1.0} for i in range(20)]
    assert "length-fixed" not in {finding.code for finding in diagnosed(rows).findings}
    ended = [{**row, CUT: 0.0} for row in rows]
    assert "length-fixed" in {finding.code for finding in diagnosed(ended).findings}
