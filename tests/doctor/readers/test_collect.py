from __future__ import annotations

import math
from pathlib import Path

from levelhead.doctor.readers.base import Row, Unread
from levelhead.doctor.readers.collect import HistoryBuilder
from levelhead.doctor.readers.sources import read


def collected(*rows: Row) -> tuple[HistoryBuilder, Unread]:
    unread = Unread()
    collector = HistoryBuilder(unread)
    for row in rows:
        collector.add(row)
    return collector, unread


def test_rows_without_a_step_are_numbered() -> None:
    collector, _ = collected(*(Row(None, {"reward": 0.1 * i}) for i in range(3)))
    assert collector.run.series("reward").steps == [1, 2, 3]


def test_copies_that_other_ranks_print_are_dropped() -> None:
    rows = [Row(step, {"reward": 0.1 * step, "kl": math.nan}) for step in (1.0, 1.0, 1.0, 1.0, 2.0, 2.0)]
    collector, _ = collected(*rows)
    assert collector.run.series("reward").steps == [1, 2]
    assert collector.run.series("kl").bad.count == 2


def test_parts_of_a_step_come_together_whatever_comes_first() -> None:
    collector, _ = collected(Row(3, {"reward": 0.5}), Row(3, {"loss": 0.1, "reward": 0.5}), Row(4, {"loss": 0.1}))
    assert collector.run.rows == 2
    assert collector.run.series("loss").steps == [3, 4]
    assert collector.run.series("reward").steps == [3]


def test_a_rollout_ahead_of_the_trainer_is_no_restart() -> None:
    rows = [Row(s, {"reward": 0.5}) for s in (1, 2, 3)] + [Row(s, {"loss": 0.1}) for s in (1, 2, 3)]
    collector, unread = collected(*rows)
    assert collector.run.series("loss").steps == [1, 2, 3]
    assert unread.count == 0


def test_a_restart_begins_another_run_and_the_longest_is_kept() -> None:
    first = [Row(s, {"reward": 0.1}) for s in range(1, 4)]
    second = [Row(s, {"reward": 0.2}) for s in range(1, 9)]
    third = [Row(s, {"reward": 0.3}) for s in range(1, 3)]
    collector, unread = collected(*first, *second, *third)
    assert set(collector.run.series("reward").values) == {0.2}
    assert unread.count == 2


def test_resuming_from_a_checkpoint_replaces_what_was_undone() -> None:
    rows = [Row(s, {"reward": 0.1}) for s in range(1, 11)] + [Row(s, {"reward": 0.9}) for s in range(7, 13)]
    collector, unread = collected(*rows)
    series = collector.run.series("reward")
    assert series.steps == list(range(1, 13))
    assert series.values == [0.1] * 6 + [0.9] * 6
    assert collector.run.rows == 12
    assert unread.count == 0


def test_steps_that_start_over_with_each_epoch_are_strung_together() -> None:
    rows = [Row(step, {"reward": 0.1 * step, "loss": 0.1 * epoch}, epoch) for epoch in (0.0, 1.0) for step in (0, 1, 2)]
    collector, _ = collected(*rows)
    assert collector.run.series("reward").steps == [0, 1, 2, 3, 4, 5]


def test_an_epoch_that_starts_over_is_another_run() -> None:
    rows = [Row(None, {"reward": 0.1}, 0.1 * i) for i in range(1, 6)] + [
        Row(None, {"reward": 0.2}, 0.1 * i) for i in range(1, 9)
    ]
    collector, unread = collected(*rows)
    assert set(collector.run.series("reward").values) == {0.2}
    assert unread.count == 1


def test_a_step_that_never_moves_is_no_step() -> None:
    collector, _ = collected(*(Row(7, {"reward": 0.1 * i, "loss": 0.2 * i}) for i in range(20)))
    steps = collector.run.series("reward").steps
    assert len(steps) >= 17
    assert steps == sorted(set(steps))


def test_epochs_are_remembered() -> None:
    collector, _ = collected(Row(None, {"reward": 0.1}, 0.31), Row(None, {"reward": 0.1}, 0.33))
    assert collector.run.epochs == (0.31, 0.33)


def test_a_second_table_of_a_document_does_not_undo_the_rows_of_the_first(tmp_path: Path) -> None:
    first = "".join(f"| {step} | {0.1 * step:.1f} | 1.0 |\n" for step in range(1, 9))
    second = "| 4 | 0.2 | 0.5 |\n| 6 | 0.3 | 0.4 |\n"
    head = "| step | reward | entropy |\n|---|---|---|\n"
    path = tmp_path / "report.md"
    path.write_text(f"# Run 30\n{head}{first}\n# Run 31\n{head}{second}", encoding="utf-8")
    log = read(path)
    assert log.history.series("reward").steps == list(range(1, 9))
    assert any("another run" in sample["why"] for sample in log.unread.samples)
