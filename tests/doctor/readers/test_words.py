"""Headings that nobody has listed are understood by their words, and only where these settle it."""

from __future__ import annotations

import pytest

from levelhead.doctor.readers.keys import KeyMap, by_words


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("mean KL", "kl"),
        ("per-token KL to reference", "kl"),
        ("KL(old)", "ppo_kl"),
        ("KL sampler vs trainer", "mismatch/kl"),
        ("policy entropy (nats)", "entropy"),
        ("tokenEntropyMean", "entropy"),
        ("Gradient norm (L2)", "grad_norm"),
        ("groups with zero reward spread", "frac_reward_zero_std"),
        ("flat_reward_group_ratio", "frac_reward_zero_std"),
        ("Train reward", "reward"),
        ("reward std within group", "reward_std"),
        ("Avg Response Len", "completions/mean_length"),
        ("AvgLen", "completions/mean_length"),
        ("Train truncation", "completions/clipped_ratio"),
        ("valid JSON rate", "validity"),
    ],
)
def test_a_signal_under_another_name(raw: str, name: str) -> None:
    assert by_words(raw) == name


@pytest.mark.parametrize(
    "raw",
    [
        "max KL",
        "target_kl",
        "kl_coefficient",
        "KL loss weight",
        "entropy bonus",
        "entropy loss",
        "value entropy",
        "token entropy std",
        "prompt length",
        "max output tokens",
        "reward margin",
        "chosen reward",
        "reward model loss",
        "advantage std",
        "grad norm clip",
        "zero-shot accuracy",
        "truncation limit",
        "validation loss",
        "step",
        "",
        "a " * 40,
    ],
)
def test_words_that_change_the_meaning_settle_nothing(raw: str) -> None:
    assert by_words(raw) is None


def test_a_listed_key_wins_over_words() -> None:
    keys = KeyMap("csv")
    listed, judged = keys.lookup("kl"), keys.lookup("mean KL")
    assert listed is not None
    assert judged is not None
    assert (listed.name, judged.name) == ("kl", "kl")
    assert listed.rank < judged.rank
