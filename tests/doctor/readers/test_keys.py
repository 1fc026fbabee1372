from __future__ import annotations

import pytest

from levelhead.doctor.readers.keys import KeyMap


def name_of(raw: str, source: str = "text") -> str | None:
    target = KeyMap(source).lookup(raw)
    return target.name if target else None


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("reward", "reward"),
        ("train/reward", "reward"),
        ("train/steps", "step"),
        ("env/rollout/step", "step"),
        ("critic/score/mean", "reward"),
        ("rollout/raw_reward", "reward"),
        ("completion_length", "completions/mean_length"),
        ("response_length/clip_ratio", "completions/clipped_ratio"),
        ("response_clip_ratio", "completions/clipped_ratio"),
        ("clip_ratio", "clip_ratio/region_mean"),
        ("actor/pg_clipfrac", "clip_ratio/region_mean"),
        ("actor/ppo_kl", "ppo_kl"),
        ("actor/kl_loss", "kl"),
        ("Grad. Norm", "grad_norm"),
        ("Training Loss", "loss"),
        ("rewards/accuracy_reward", "rewards/accuracy_reward/mean"),
        ("rewards/MathORM/mean", "rewards/MathORM/mean"),
        ("rewards/MathORM/std", "rewards/MathORM/std"),
        ("rewards/cosine_scaled_reward", "rewards/cosine_scaled_reward/mean"),
        ("critic/format_score/mean", "rewards/format_score/mean"),
        ("eval_reward", "eval/reward"),
        ("val-core/openai/gsm8k/reward/mean@1", "eval/openai/gsm8k/reward/mean@1"),
        ("acc", "rewards/acc/mean"),
        ("奖励", "reward"),
    ],
)
def test_raw_keys_lead_to_their_signal(raw: str, name: str) -> None:
    assert name_of(raw) == name


@pytest.mark.parametrize(
    "raw",
    [
        "critic/grad_norm",
        "critic/lr",
        "critic/vpred_mean",
        "critic/vf_explained_var",
        "eval_loss",
        "eval_runtime",
        "timing_s/gen",
        "reward_scale",
        "prompt_length/mean",
        "optimizer/lr_scale",
        "a" * 500,
    ],
)
def test_what_is_not_the_policys_is_left_out(raw: str) -> None:
    assert name_of(raw) is None


def test_a_word_means_what_its_trainer_means() -> None:
    assert name_of("entropy_loss", "openrlhf") == "entropy"
    assert name_of("entropy_loss", "trl") is None
    assert name_of("actor/entropy_loss", "verl") == "entropy"


def test_one_minus_and_inverse_keys_are_turned_over() -> None:
    keys = KeyMap("nemo-rl")
    mixed = keys.lookup("baseline_reward/pct_mixed")
    assert mixed is not None
    assert (mixed.name, mixed.apply(0.25)) == ("frac_reward_zero_std", 0.75)
    speed = KeyMap("ms-swift").lookup("train_speed(iter/s)")
    assert speed is not None
    assert (speed.name, speed.apply(0.01)) == ("step_time", 100.0)


def test_the_users_own_map_wins() -> None:
    keys = KeyMap("text", {"reward": "loss"})
    target = keys.lookup("loss")
    assert target is not None
    assert target.name == "reward"


def test_a_per_cent_column_above_one_is_divided() -> None:
    target = KeyMap("text").lookup("zero%")
    assert target is not None
    assert target.apply(61) == pytest.approx(0.61)
    assert target.apply(0.61) == 0.61


@pytest.mark.parametrize(
    ("raw", "signal"),
    [
        ("eval_eval/accuracy", "eval/accuracy"),
        ("eval/eval_reward", "eval/reward"),
        ("eval/eval/rewards/right/mean", "eval/rewards/right/mean"),
        ("eval_reward", "eval/reward"),
    ],
)
def test_a_held_out_metric_is_named_eval_once(raw: str, signal: str) -> None:
    target = KeyMap("trl").lookup(raw)
    assert target is not None
    assert target.name == signal


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("GradN", "grad_norm"),
        ("grad|g|", "grad_norm"),
        ("zvf", "frac_reward_zero_std"),
        ("exact_rate", "rewards/exact_rate/mean"),
        ("reward/all_correct_ratio", "rewards/all_correct_ratio/mean"),
    ],
)
def test_short_names_of_consoles_are_known(raw: str, name: str) -> None:
    target = KeyMap("text").lookup(raw)
    assert target is not None
    assert target.name == name


def test_a_share_of_format_errors_is_no_reward_for_the_form() -> None:
    target = KeyMap("verl").lookup("reward/format_error_ratio")
    assert target is not None
    assert (target.name, target.apply(0.25)) == ("validity", 0.75)
