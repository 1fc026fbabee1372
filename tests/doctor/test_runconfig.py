"""Settings are read from scripts and configurations as data, in every trainer's words, and nothing is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from levelhead.doctor.runconfig import read_settings
from levelhead.errors import InputError

SCRIPT = """
import pathlib
pathlib.Path("executed").write_text("x")
LR = 5e-4
args = GRPOConfig(learning_rate=LR * 2, num_generations=2, max_completion_length=64 * 2, temperature=0.9, beta=0.0)
peft = LoraConfig(r=16, lora_alpha=32)
raise SystemExit
"""
VERL = """
actor_rollout_ref:
  actor: {optim: {lr: 1e-6}, kl_loss_coef: 0.001}
  rollout: {n: 5, temperature: 1.0, val_kwargs: {temperature: 0, n: 1}}
data: {max_response_length: 1024}
critic: {optim: {lr: 1e-5}}
"""


def settings(tmp_path: Path, name: str, text: str) -> dict[str, float]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return dict(read_settings(path).values)


def test_a_script_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings(tmp_path, "train.py", SCRIPT) == {
        "learning_rate": 1e-3,
        "group_size": 2,
        "max_completion_length": 128,
        "temperature": 0.9,
        "kl_coef": 0.0,
        "lora": 16,
    }
    assert not (tmp_path / "executed").exists()


def test_the_policys_settings_are_told_from_the_critics_and_the_validations(tmp_path: Path) -> None:
    assert settings(tmp_path, "verl.yaml", VERL) == {
        "learning_rate": 1e-6,
        "kl_coef": 0.001,
        "group_size": 5,
        "temperature": 1.0,
        "max_completion_length": 1024,
    }


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", '{"num_generations": 8, "learning_rate": "1e-6"}', {"group_size": 8, "learning_rate": 1e-6}),
        (
            "a.toml",
            "[optim]\nlr = 1e-6\n[orchestrator]\nrollouts_per_example = 16",
            {"learning_rate": 1e-6, "group_size": 16},
        ),
        ("run.sh", "python x --n_samples_per_prompt 8 \\\n --init_kl_coef 1e-3", {"group_size": 8, "kl_coef": 1e-3}),
        ("run.sh", "main actor_rollout_ref.rollout.n=5 critic.optim.lr=1e-5", {"group_size": 5}),
        ("a.py", "parser.add_argument('--lr', type=float, default=3e-6)", {"learning_rate": 3e-6}),
        (
            "a.yaml",
            "grpo:\n  group_size: 4\n  optimizer: {learning_rate: 1.0e-6}",
            {"group_size": 4, "learning_rate": 1e-6},
        ),
    ],
)
def test_every_trainers_words(tmp_path: Path, name: str, text: str, expected: dict[str, float]) -> None:
    assert settings(tmp_path, name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def broken(:"),
        ("a.json", "{"),
        ("a.yaml", "a: [1"),
        ("a.toml", "= 1"),
        ("a.yaml", "other: 1"),
        ("a.py", ""),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InputError, match=f"--config .*{name}") as error:
        settings(tmp_path, name, text)
    assert "\n" not in str(error.value)
