"""The four post-mortems that Levelhead comes from are recognised: as documents, by their tables alone, and as logs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from levelhead.doctor.report import Report, examine

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "postmortems"
documents = pytest.mark.skipif(not DATA.is_dir(), reason="the post-mortems are not at ../shared/data/postmortems")

DEADLOCK, TEMPLATE, COLLAPSE, SIGN = "002", "003", "004", "000"


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.diagnosis.findings if finding.severity != "info"]


def written(path: Path, text: str) -> Report:
    path.write_text(text, encoding="utf-8")
    return examine(path)


def tables_of(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip().startswith("|"))


def document(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.data
@documents
@pytest.mark.parametrize(
    ("name", "first", "among"),
    [
        (DEADLOCK, {"deadlock"}, "entropy-collapse"),
        (TEMPLATE, {"prompt-in-loss", "template-mismatch"}, "template-mismatch"),
        (COLLAPSE, {"update-collapse"}, "advantage-two-valued"),
        (SIGN, {"entropy-sign"}, "entropy-collapse"),
    ],
)
def test_a_document_is_named_after_what_its_author_found(
    name: str, first: set[str], among: str, tmp_path: Path
) -> None:
    report = written(tmp_path / "report.md", document(name))
    assert report.diagnosis.verdict == "critical"
    assert codes(report)[0] in first
    assert among in codes(report)


@pytest.mark.data
@documents
def test_a_deadlock_explains_the_entropy_that_is_gone(tmp_path: Path) -> None:
    report = written(tmp_path / "report.md", document(DEADLOCK))
    assert "entropy-collapse" in report.diagnosis.findings[0].explains


@pytest.mark.data
@documents
@pytest.mark.parametrize(
    ("name", "first"),
    [(DEADLOCK, "deadlock"), (TEMPLATE, "template-mismatch"), (COLLAPSE, "update-collapse")],
)
def test_its_tables_alone_are_enough(name: str, first: str, tmp_path: Path) -> None:
    assert codes(written(tmp_path / "tables.md", tables_of(document(name))))[:1] == [first]


def trl(rows: list[dict[str, float]]) -> str:
    return "".join(f"{row}\n" for row in rows)


def click_test() -> list[dict[str, float]]:
    """Rows of a browser task at a rate of 5e-6: nothing for twelve steps, eight that learn, and a standstill."""
    rng = random.Random(1)
    rows: list[dict[str, float]] = []
    for step in range(1, 101):
        row = {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 5e-6, "completions/mean_length": 5.0}
        if step <= 12:
            row |= {"reward": 0.0, "reward_std": 0.0, "entropy": round(rng.uniform(2.3, 2.8), 3), "step_time": 140.0}
        elif step <= 20:
            share = (step - 12) / 8
            row |= {"reward": 0.75 if step != 17 else 0.5, "reward_std": 0.5, "entropy": round(1.53 - share, 3)}
            row |= {"loss": -0.008 - 0.23 * share, "grad_norm": 0.53 + 10.2 * share, "step_time": 140.0}
        else:
            row |= {"reward": 1.0, "reward_std": 0.0, "entropy": 0.04 if step == 21 else 0.006, "step_time": 0.08}
        rows.append(row | {"frac_reward_zero_std": float(row["reward_std"] == 0)})
    return rows


def test_the_log_of_the_deadlock(tmp_path: Path) -> None:
    report = written(tmp_path / "log.txt", trl(click_test()))
    assert report.diagnosis.verdict == "critical"
    assert codes(report)[0] == "deadlock"
    assert report.diagnosis.findings[0].first_step == 21
    assert "entropy-collapse" in report.diagnosis.findings[0].explains


def test_the_symptoms_of_the_deadlock_are_no_healthy_row(tmp_path: Path) -> None:
    block = "entropy: 0.007\nloss: 0.0\ngrad_norm: 0.0\nreward: 1.0\nreward_std: 0.0\nfrac_reward_zero_std: 1.0\n"
    assert written(tmp_path / "block.txt", block).diagnosis.faulty


def test_the_log_of_the_template_that_does_not_fit(tmp_path: Path) -> None:
    lines = []
    for step in range(1, 13):
        length = 2 if step % 3 else 214
        lines += [
            f"Step {step}: 熵=0.000, 长度={length} tokens, 奖励=0.0",
            "⚠️ 异常: Response开头似乎包含chat header",
            "⚠️ 异常: Full包含36个<|eot_id|>",
            "Fairness样本 0: entropy=0.000",
        ]
    report = written(tmp_path / "log.txt", "\n".join(lines))
    assert report.diagnosis.faulty
    assert codes(report)[0] in ("template-mismatch", "prompt-in-loss")


def workflow_run(pairs: bool = True) -> str:
    """Steps of a run of pairs: nearly every update is followed by a step in which nothing is valid."""
    rng = random.Random(4)
    lines, updates = [], 0
    after_update = False
    for step in range(1, 97):
        valid = 0.0 if after_update and updates != 20 else rng.choice([0.67, 0.83, 1.0])
        update = valid > 0 and step % 5 in (1, 4)
        updates += update
        after_update = update
        line = f"Step {step}: accuracy={valid / 2:.2f} valid_ratio={valid:.2f} reward={valid / 2:.2f} updates={updates}"
        lines.append(line + (" adv_max=1.0 adv_min=-1.0" if pairs and valid else ""))
    return "\n".join(lines)


def test_the_log_of_the_collapse_after_updates(tmp_path: Path) -> None:
    report = written(tmp_path / "log.txt", workflow_run())
    assert report.diagnosis.verdict == "critical"
    assert codes(report)[0] == "update-collapse"
    assert {"advantage-two-valued", "group-size-too-small"} & set(codes(report))


def test_pairs_of_rewards_and_their_advantages_are_read_as_groups_of_two(tmp_path: Path) -> None:
    lines = []
    for step in range(1, 7):
        lines += [
            f"Step {step}: accuracy=0.5",
            "组0: 奖励=[1.0, 1.0] → mean=1.0, std=0 → advantage=[0, 0]",
            "组1: 奖励=[1.0, 0.2] → mean=0.6, std=0.4 → advantage=[+1.0, -1.0]",
            "组2: 奖励=[0.2, 0.2] → mean=0.2, std=0 → advantage=[0, 0]",
        ]
    report = written(tmp_path / "log.txt", "\n".join(lines))
    assert {"advantage-two-valued", "group-size-too-small"} & set(codes(report))


def test_the_log_of_the_entropy_term_with_the_wrong_sign(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows, entropy = [], 2.4
    for step in range(1, 41):
        coefficient = 0.2 if step <= 20 else 0.5
        entropy *= 0.97 if step <= 20 else 0.75
        rows.append(
            {
                "reward": 0.4 + rng.uniform(-0.05, 0.05),
                "reward_std": 0.2,
                "entropy": round(max(entropy, 0.005), 4),
                "entropy_coef": coefficient,
                "grad_norm": 0.5,
            }
        )
    report = written(tmp_path / "log.txt", trl(rows))
    assert codes(report)[0] == "entropy-sign"


def test_a_warning_of_the_author_is_no_statement(tmp_path: Path) -> None:
    text = "If the entropy collapses, lower the rate.\n如果出现死锁\uff0c检查代码\nThis avoids reward hacking.\n"
    rows = "".join(f"| {i} | {0.2 + 0.05 * i:.2f} | {1.5 - 0.01 * i:.2f} |\n" for i in range(12))
    report = written(tmp_path / "notes.md", f"# Notes\n{text}\n| step | reward | entropy |\n|---|---|---|\n{rows}")
    assert report.log.statements == {}
    assert report.diagnosis.verdict == "healthy"


def test_what_the_text_says_is_said_to_be_the_texts(tmp_path: Path) -> None:
    report = written(tmp_path / "note.md", "# Post-mortem\n\n## The run is in a deadlock\nThe deadlock began at 21.\n")
    (argument,) = report.diagnosis.findings[0].evidence
    assert (report.diagnosis.findings[0].code, argument.key) == ("deadlock", "text-says")
    assert argument.numbers["quote"] == "The run is in a deadlock"
