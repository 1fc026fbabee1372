"""The rewards that ``init`` writes, on answers that a hasty comparison would get wrong."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from levelhead.scaffold.write import InitOptions, plan


@pytest.mark.parametrize("answer", [10**30 + 1, 2**53 + 1, 0.5, -7])
def test_a_number_is_right_to_its_last_digit(answer: float, tmp_path: Path) -> None:
    rows = [{"question": f"What is number {i}?", "answer": answer} for i in range(12)]
    (tmp_path / "d.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    made = plan(InitOptions("d", "base-tiny", str(tmp_path / "d.jsonl"), "number", None, None, tmp_path / "new"))
    made.write()
    reward = runpy.run_path(str(tmp_path / "new" / "d_rewards.py"))["right_number"]
    said = [f"it is {answer}", f"#### {answer + 1}", "nothing"]
    assert reward(said, answer=[answer] * 3) == [1.0, 0.0, 0.0]
