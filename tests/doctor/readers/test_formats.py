"""One small example of every format, with its traps; written by hand after the trainers' logging code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from levelhead.diagnosis.history import History
from levelhead.doctor.readers.sources import Log, read

TWO_ROWS = ((10, 0.5, 0.01), (20, 0.6, 0.02))
"""Step, reward and KL."""


def load(tmp_path: Path, text: str, name: str = "log.txt", **options: object) -> Log:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read(path, **options)  # type: ignore[arg-type]


def column(history: History, name: str) -> list[tuple[float, float]]:
    series = history.series(name)
    return list(zip(series.steps, series.values, strict=True))


def test_trl_stdout_behind_progress_bars_with_quoted_values(tmp_path: Path) -> None:
    text = (
        "  5%|▌   | 10/200 [01:00<20:00,  6.0s/it]\r      \r{'loss': '-0.08838', 'grad_norm': '1.5e+04', "
        "'completions/mean_length': '200.1', 'reward': '0.5', 'reward_std': '0.1', 'kl': nan, 'epoch': '0.01'}\n"
        " 10%|█   | 20/200 [02:00<18:00,  6.0s/it]\r{'loss': '0.01', 'grad_norm': inf, 'reward': 0.6, 'epoch': "
        "'0.02'}\n"
        "{'train_runtime': '50', 'train_loss': '0.03', 'epoch': '1'}\n"
    )
    log = load(tmp_path, text)
    assert log.format == "trl"
    assert column(log.history, "reward") == [(10, 0.5), (20, 0.6)]
    assert column(log.history, "grad_norm") == [(10, 15000.0)]
    assert log.history.series("grad_norm").bad.count == 1
    assert log.history.series("kl").bad.first == 10
    assert log.history.rows == 2


def test_a_described_progress_bar_is_not_the_training_bar(tmp_path: Path) -> None:
    text = "Loading shards: 100%|██| 2/2 [00:01<00:00]\n{'loss': 0.1, 'reward': 0.5, 'reward_std': 0.1}\n"
    assert column(load(tmp_path, text).history, "reward") == [(1, 0.5)]


def test_a_dict_wrapped_by_a_terminal_inside_a_key_and_inside_a_number(tmp_path: Path) -> None:
    text = "{'loss': 0.0123, 'grad_no\nrm': 0.51, 'reward': 0.4\n31, 'reward_std': 0.2}\n"
    history = load(tmp_path, text).history
    assert column(history, "reward") == [(1, 0.431)]
    assert column(history, "grad_norm") == [(1, 0.51)]


def test_a_number_cut_at_the_end_is_left_out_and_reported(tmp_path: Path) -> None:
    log = load(tmp_path, "{'loss': 0.02, 'reward': 0.5}\n{'loss': 0.03, 'reward': 0.6, 'completion_length': 190.5")
    assert column(log.history, "reward") == [(1, 0.5), (2, 0.6)]
    assert column(log.history, "completions/mean_length") == []
    assert "middle of a number" in log.unread.to_json()[0]["why"]


def test_trainer_state_with_evaluations_and_bare_nan(tmp_path: Path) -> None:
    rows = [
        {"step": 5, "loss": 0.1, "reward": 0.2, "grad_norm": math.nan},
        {"step": 5, "eval_reward": 0.3, "eval_loss": 1.0},
        {"step": 10, "loss": 0.1, "reward": 0.25, "grad_norm": 0.5},
        {"step": 10, "train_runtime": 9.0, "total_flos": 0.0},
    ]
    state = {"best_metric": None, "global_step": 10, "log_history": rows, "stateful_callbacks": {"a": {"args": {}}}}
    for name, indent in (("flat.json", None), ("pretty.json", 2)):
        log = load(tmp_path, json.dumps(state, indent=indent), name)
        assert log.format == "trl-state"
        assert column(log.history, "reward") == [(5, 0.2), (10, 0.25)]
        assert column(log.history, "eval/reward") == [(5, 0.3)]
        assert log.history.series("grad_norm").bad.count == 1


@pytest.mark.parametrize("indent", [None, 2])
def test_a_trainer_state_of_one_row(tmp_path: Path, indent: int | None) -> None:
    row = {"loss": 0.0, "reward": 0.25, "step": 4, "epoch": 0.01}
    text = json.dumps({"global_step": 4, "log_history": [row]}, indent=indent)
    log = load(tmp_path, text, "trainer_state.json")
    assert (log.format, column(log.history, "reward")) == ("trl-state", [(4, 0.25)])


def test_a_bare_list_of_rows(tmp_path: Path) -> None:
    text = json.dumps([{"step": 1, "loss": 0.1, "reward": 0.2}, {"step": 2, "loss": 0.1, "reward": 0.3}])
    assert column(load(tmp_path, text, "x.json").history, "reward") == [(1, 0.2), (2, 0.3)]


@pytest.mark.parametrize("beside", [{}, {"lost": []}, {"twice": [0, 1], "seconds": [5, 6, 7, 8]}])
def test_columns_of_equal_length_beside_lists_of_something_else(tmp_path: Path, beside: dict[str, list[int]]) -> None:
    text = json.dumps({"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3], "loss": [0, 0, 0], **beside}, indent=1)
    assert column(load(tmp_path, text, "x.json").history, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_notebook_tables_have_cells_without_a_log_and_placeholders(tmp_path: Path) -> None:
    text = (
        "Step | Training Loss | reward | kl | entropy\n-- | -- | -- | -- | --\n"
        "1 | -0.283600 | 13.437500 | nan | 0\n2 | -0.149100 | 6.931818 | 0.1 | No Log\n"
    )
    log = load(tmp_path, text)
    assert log.format == "trl-notebook"
    assert column(log.history, "reward") == [(1, 13.4375), (2, 6.931818)]
    assert "entropy" not in log.history


@pytest.mark.parametrize("separator", ["\t", "   "])
def test_pasted_tables(tmp_path: Path, separator: str) -> None:
    rows = [
        ["Step", "Training Loss", "reward", "reward_std"],
        ["10", "-0.02", "1.4", "2.8"],
        ["20", "-0.01", "1.9", "1.5"],
    ]
    log = load(tmp_path, "\n".join(separator.join(row) for row in rows))
    assert column(log.history, "reward_std") == [(10, 2.8), (20, 1.5)]


def test_saved_notebooks_with_text_and_html_output(tmp_path: Path) -> None:
    head = "<table> <thead> <tr> <th>Step</th> <th>Training_Loss</th> <th>reward</th> </tr> </thead>"
    body = "<tr> <td>1</td> <td>0.1</td> <td>0.2</td> </tr> <tr><td>2</td><td>0.1</td><td>0.3</td> </tr>"
    html = f"{head} {body}".split()
    cell = {"outputs": [{"data": {"text/html": [line + "\n" for line in html]}}]}
    log = load(tmp_path, json.dumps({"cells": [cell]}, indent=1), "nb.ipynb")
    assert column(log.history, "reward") == [(1, 0.2), (2, 0.3)]
    printed = {
        "outputs": [
            {"text": ["{'loss': 0.1, 'reward': 0.5, 'kl': 0.2}\n", "{'loss': 0.1, 'reward': 0.6, 'kl': 0.2}\n"]}
        ]
    }
    log = load(tmp_path, json.dumps({"cells": [printed]}, indent=1), "nb2.ipynb")
    assert column(log.history, "reward") == [(1, 0.5), (2, 0.6)]


def test_verl_console_with_colours_prefixes_numpy_and_validation(tmp_path: Path) -> None:
    text = (
        "\x1b[36m(TaskRunner pid=9)\x1b[0m step:0 - val-core/openai/gsm8k/reward/mean@1:np.float64(0.31)\n"
        "\x1b[36m(TaskRunner pid=9)\x1b[0m step:1 - actor/entropy:np.float64(0.41) - actor/pg_loss:-0.001 - "
        "actor/ppo_kl:-1e-05 - "
        "actor/grad_norm:nan - critic/grad_norm:55.0 - critic/score/mean:0.41 - critic/score/max:1.0 - "
        "critic/rewards/mean:0.40 - "
        "response_length/mean:200.1 - response_length/clip_ratio:0.02 - timing_s/step:45.2\n"
        "Training Progress:   0%| | 1/435 [00:45<5:30:00]\x1b[36m(TaskRunner pid=9)\x1b[0m step:2 - "
        "actor/entropy:0.4 - "
        "critic/score/mean:0.42 - actor/grad_norm:0.2\n"
    )
    log = load(tmp_path, text)
    assert log.format == "verl"
    assert column(log.history, "reward") == [(1, 0.41), (2, 0.42)]
    assert column(log.history, "completions/clipped_ratio") == [(1, 0.02)]
    assert column(log.history, "grad_norm") == [(2, 0.2)]
    assert column(log.history, "eval/openai/gsm8k/reward/mean@1") == [(0, 0.31)]
    assert column(log.history, "step_time") == [(1, 45.2)]


def test_verl_file_logger_writes_null_for_nan(tmp_path: Path) -> None:
    lines = [
        {"step": i, "data": {"critic/score/mean": 0.1 * i, "actor/grad_norm": None if i == 2 else 0.3}}
        for i in (1, 2, 3)
    ]
    log = load(tmp_path, "\n".join(map(json.dumps, lines)), "x.jsonl")
    assert log.format == "verl-file"
    assert column(log.history, "grad_norm") == [(1, 0.3), (3, 0.3)]
    assert log.history.series("grad_norm").bad.first == 2


def test_openrlhf_console_wrapped_and_elided(tmp_path: Path) -> None:
    text = (
        "✨ Global step 1: {'policy_loss': 0.01, 'actor_lr': 5e-07, 'kl': 0.001, 'entropy_loss': 0.9, 'reward': 0.2, "
        "'response_length': 300.0, 'group_reward_std': 0.2, 'timing/step_total': 30.1}\n"
        "Global step 2: {'policy_loss': 0.02, 'kl': 0.002,\n'reward': 0.3, 'actor_grad_norm': 0.1,\n"
        "'rollout/truncated_rate': 1.0, ...}\n"
    )
    log = load(tmp_path, text)
    assert log.format == "openrlhf"
    assert column(log.history, "reward") == [(1, 0.2), (2, 0.3)]
    assert column(log.history, "entropy") == [(1, 0.9)]
    assert column(log.history, "completions/clipped_ratio") == [(2, 1.0)]


def test_numbers_behind_a_progress_bar_are_read_where_nothing_else_is_printed(tmp_path: Path) -> None:
    bar = "Train epoch: {n}0%|█| {n}/10 [00:30<05:00, act_loss=0.01, reward=0.{n}, gen_len=300, kl=0.001]\r"
    bars = "".join(bar.replace("{n}", str(n)) for n in (1, 2, 2, 3))
    assert column(load(tmp_path, bars).history, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    printed = "".join(
        f"Global step {n}: {{'policy_loss': 0.01, 'reward': 0.{n}5}}\n" + bar.replace("{n}", str(n))
        for n in (1, 2, 3, 4)
    )
    assert [v for _, v in column(load(tmp_path, printed).history, "reward")] == [0.15, 0.25, 0.35, 0.45]


def test_printed_configurations_and_samples_are_no_rows(tmp_path: Path) -> None:
    text = (
        "{'actor': {'clip_ratio': 0.2, 'entropy_coeff': 0, 'kl_loss_coef': 0.001},\n"
        " 'rollout': {'response_length': 1024}}\n"
        "┃ Prompt ┃ Completion ┃ accuracy_reward ┃ format_reward ┃ Advantage ┃\n│ What? │ 42 │ 1.00 │ 0.00 │ 0.70 │\n"
        '{"step": 4, "prompt": "what?", "completion": "42", "reward": 1.0, "accuracy_reward": 1.0}\n'
        "{'loss': 0.1, 'reward': 0.5, 'reward_std': 0.2}\n"
    )
    history = load(tmp_path, text).history
    assert history.rows == 1
    assert column(history, "reward") == [(1, 0.5)]


@pytest.mark.parametrize("colon", [":", ""])
def test_prime_rl_joins_orchestrator_and_trainer_on_the_step(tmp_path: Path, colon: str) -> None:
    text = "".join(
        f"12:00:01 SUCCESS Step {i} | 98.02s | Reward{colon} 0.4{i} | Trainable 96/128 (75.0%) | Truncation{colon} "
        f"12.5%\n"
        f"12:00:05 SUCCESS Step {i} | 20.1s | Loss{colon} 0.001 | Entropy{colon} 0.83 | Mismatch KL{colon} 0.0012 | "
        f"Grad. Norm{colon} 0.13 | LR{colon} 1.00e-06\n"
        for i in (0, 1)
    )
    log = load(tmp_path, text)
    assert log.format == "prime-rl"
    assert log.history.rows == 2
    assert column(log.history, "reward") == [(0, 0.40), (1, 0.41)]
    assert column(log.history, "mismatch/kl") == [(0, 0.0012), (1, 0.0012)]
    assert column(log.history, "frac_reward_zero_std") == [(0, 0.25), (1, 0.25)]
    assert column(log.history, "completions/clipped_ratio") == [(0, 0.125), (1, 0.125)]


def test_nemo_rl_blocks_with_and_without_headings(tmp_path: Path) -> None:
    block = (
        "\U0001f4ca Training Results:\n  • Loss: 0.0123\n  • Generation KL Error: 0.0009\n  • Avg Reward: 0.24{i}\n"
        "  • Mean Generation Length: 312.5\n\n⏱️  Timing:\n  • Total step time: 35.62s\n  • generation: 4.95s "
        "(13.9%)\n"
    )
    headed = "".join(f"========== Step {i}/150 ==========\n" + block.replace("{i}", str(i)) for i in (3, 4))
    bare = "".join(block.replace("{i}", str(i)) for i in (3, 4))
    assert column(load(tmp_path, headed).history, "reward") == [(3, 0.243), (4, 0.244)]
    log = load(tmp_path, bare)
    assert log.format == "nemo-rl"
    assert column(log.history, "reward") == [(1, 0.243), (2, 0.244)]
    assert column(log.history, "step_time") == [(1, 35.62), (2, 35.62)]
    assert column(log.history, "mismatch/kl") == [(1, 0.0009), (2, 0.0009)]


def test_ms_swift_steps_stand_in_a_fraction(tmp_path: Path) -> None:
    rows = [
        {"loss": 0.0, "reward": 0.1 * i, "frac_reward_zero_std": 0.5, "global_step/max_steps": f"{5 * i}/3766",
         "elapsed_time": "1m 3s", "train_speed(s/it)": 12.5, "kl": math.nan if i == 2 else 0.01}
        for i in (1, 2, 3)
    ]  # fmt: skip
    log = load(tmp_path, "\n".join(map(json.dumps, rows)), "logging.jsonl")
    assert log.format == "ms-swift"
    assert [step for step, _ in column(log.history, "reward")] == [5, 10, 15]
    assert log.history.series("kl").bad.first == 10
    assert column(log.history, "step_time")[0] == (5, 12.5)


def test_slime_prefixes_carry_the_step(tmp_path: Path) -> None:
    text = "".join(
        f"(RolloutManager pid=1) rollout {i}: {{'rollout/response_len/mean': 512.2, 'rollout/raw_reward': 0.3{i}}}\n"
        f"(Actor pid=5) step {i}: {{'train/loss': 0.01, 'train/entropy_loss': 0.3, 'train/grad_norm': 0.2, "
        f"'train/step': {i}}}\n"
        for i in (0, 1)
    )
    log = load(tmp_path, text)
    assert log.format == "slime"
    assert column(log.history, "reward") == [(0, 0.30), (1, 0.31)]
    assert column(log.history, "entropy") == [(0, 0.3), (1, 0.3)]


def test_wandb_panel_exports_keep_one_run_and_name_the_others(tmp_path: Path) -> None:
    head = (
        '"Step","run-a - train/reward","run-a - train/reward__MIN","run-a - train/reward__MAX","run-b - train/reward"\n'
    )
    log = load(tmp_path, head + '"1","0.1","0.0","0.2","0.9"\n"2","0.2","0.1","0.3","0.8"\n', "x.csv")
    assert log.format == "wandb-csv"
    assert column(log.history, "reward") == [(1, 0.1), (2, 0.2)]
    assert "run-b" in log.unread.to_json()[0]["why"]


def test_wandb_history_exports_prefer_the_training_step(tmp_path: Path) -> None:
    text = "_step,_runtime,train/reward,train/global_step,train/kl\n0,1,0.1,10,\n1,2,0.2,20,0.1\n2,3,NaN,30,0.2\n"
    log = load(tmp_path, text, "x.csv")
    assert column(log.history, "reward") == [(10, 0.1), (20, 0.2)]
    assert log.history.series("reward").bad.count == 1
    assert column(log.history, "kl") == [(20, 0.1), (30, 0.2)]


def test_tensorboard_csvs_are_named_by_their_file_and_joined(tmp_path: Path) -> None:
    for tag, values in (("train_reward", (0.5, 0.6)), ("train_kl", (0.01, 0.02))):
        text = "Wall time,Step,Value\n" + "".join(f"1.7e9,{10 * (i + 1)},{v}\n" for i, v in enumerate(values))
        (tmp_path / f"run_{tag}.csv").write_text(text, encoding="utf-8")
    log = read(tmp_path)
    assert log.format == "tensorboard-csv"
    assert column(log.history, "reward") == [(10, 0.5), (20, 0.6)]
    assert column(log.history, "kl") == [(10, 0.01), (20, 0.02)]


@pytest.mark.parametrize(
    "lines",
    [
        [f"2025-01-01 12:00:{s} INFO step={s} loss=0.12 reward={r} kl={k}" for s, r, k in TWO_ROWS],
        [f"[12:00:00] Step {s}/100 | loss: 0.12 | mean reward: {r} | kl: {k}" for s, r, k in TWO_ROWS],
        [f"iter {s} loss 0.53 reward {r} kl {k}" for s, r, k in TWO_ROWS],
        [f"Step {s}:\n  loss: 0.1, reward: {r}, kl: {k}" for s, r, k in TWO_ROWS],
        [f"Step {s}:\n  loss: 0.1\n  reward: {r}\n  kl: {k}" for s, r, k in TWO_ROWS],
        [f"Epoch 1, Step {s}: Loss = 0.5, Avg Reward = {r} ± 0.1, KL: {k}" for s, r, k in TWO_ROWS],
        ["| Step | Reward | KL |", "|---|---|---|", "| 1\u201310 | 0.5 | 0.01 |", "| 11\u201320 | **0.6** | 0.02 |"],
        ["step,mean_reward,kl", *(f"{s},{r},{k}" for s, r, k in TWO_ROWS)],
        [f'{{"step": {s}, "reward_mean": {r}, "kl": {k}}}' for s, r, k in TWO_ROWS],
        [f"步骤: {s}, 损失: 0.1, 奖励: {r}, kl: {k}" for s, r, k in TWO_ROWS],
    ],
)
def test_hand_written_logs(tmp_path: Path, lines: list[str]) -> None:
    history = load(tmp_path, "\n".join(lines)).history
    assert column(history, "reward") == [(10, 0.5), (20, 0.6)]
    assert column(history, "kl") == [(10, 0.01), (20, 0.02)]


def test_interleaved_evaluations_are_kept_apart(tmp_path: Path) -> None:
    text = '{"step": 1, "reward_mean": 0.1, "kl": 0.0}\n{"step": 1, "eval": true, "reward_mean": 0.3}\n'
    assert column(load(tmp_path, text, "x.jsonl").history, "eval/reward") == [(1, 0.3)]


def test_our_own_runs_leave_the_supervised_stage_out(tmp_path: Path) -> None:
    lines = [{"step": i, "stage": "sft", "loss": 2.0} for i in (1, 2)]
    lines += [{"step": i, "stage": "grpo", "loss": 0.0, "reward": 0.3, "reward/a": 0.2} for i in (1, 2, 3)]
    lines += [{"step": 3, "stage": "eval", "eval_stage": "grpo", "eval/a/score": 0.7}]
    lines.insert(2, {"step": 2, "stage": "eval", "eval_stage": "sft", "eval/a/score": 0.5})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    event = {
        "step": 2,
        "code": "gradient-spike",
        "severity": "warning",
        "message": "m",
        "action": "skip",
        "evidence": {},
    }
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\nbroken\n", encoding="utf-8")
    log = read(tmp_path)
    assert log.format == "levelhead"
    assert column(log.history, "loss") == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert column(log.history, "eval/a/score") == [(0, 0.5), (3, 0.7)]
    assert column(log.history, "reward/a")[0] == (1, 0.2)
    assert [e["action"] for e in log.events] == ["skip"]


def test_workflow_logs_give_validity_between_updates(tmp_path: Path) -> None:
    good = "DSL质量: fallback=False, ops=3, chain=True, DSL=Custom -> Programmer -> Review\n奖励: 0.2\n"
    bad = "DSL质量: fallback=True, ops=0, chain=False, DSL=### Step 1: think\n奖励: 0.0\n"
    log = load(tmp_path, good * 4 + "触发梯度更新\n" + good + bad + "触发梯度更新\n" + bad * 3)
    assert log.format == "workflow"
    assert column(log.history, "validity") == [(1, 1.0), (2, 0.5), (3, 0.0)]
    assert column(log.history, "reward") == [(1, pytest.approx(0.2)), (2, pytest.approx(0.1)), (3, 0.0)]


def test_a_key_map_reads_what_no_table_knows(tmp_path: Path) -> None:
    text = "step,gluecksgrad,verlust\n1,0.5,0.1\n2,0.6,0.1\n"
    log = load(tmp_path, text, "x.csv", extra={"reward": "gluecksgrad", "loss": "verlust"})
    assert column(log.history, "reward") == [(1, 0.5), (2, 0.6)]


def test_utf16_logs_of_a_redirected_windows_shell(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("{'loss': 0.1, 'reward': 0.5}\n{'loss': 0.1, 'reward': 0.6}\n", encoding="utf-16")
    assert column(read(path).history, "reward") == [(1, 0.5), (2, 0.6)]


def test_words_and_numbers_between_commas(tmp_path: Path) -> None:
    row = (
        "Iter {}: Train loss 0.000, Total rewards mean {}, Total rewards std 0.5, Grouped rewards mean {}, "
        "Grouped rewards std 0.25, KL {}, accuracy_reward_func mean 0.125, accuracy_reward_func std 0.3, "
        "Learning Rate 1.000e-05, It/sec 0.1\n"
    )
    history = load(tmp_path, row.format(10, 0.5, 0.5, 0.01) + row.format(20, 0.6, 0.6, 0.02)).history
    assert column(history, "reward") == [(10, 0.5), (20, 0.6)]
    assert column(history, "reward_std") == [(10, 0.25), (20, 0.25)]
    assert column(history, "rewards/accuracy/mean") == [(10, 0.125), (20, 0.125)]
    assert column(history, "learning_rate") == [(10, 1e-5), (20, 1e-5)]
    assert [kl for _, kl in column(history, "kl")] == [0.01, 0.02]


def test_checkpoints_in_the_first_column_are_steps_and_their_scores_held_out(tmp_path: Path) -> None:
    text = "  checkpoint     pass@1   pass@8\n  base-model      31.1%    76.9%\n  ckpt-20         34.5%    78.7%\n"
    history = load(tmp_path, text + "  ckpt-40         50.0%    84.4%\n").history
    assert column(history, "eval/pass@1") == [(20, pytest.approx(0.345)), (40, 0.5)]
    assert column(history, "eval/pass@8")[1] == (40, pytest.approx(0.844))


def test_windows_of_calls_and_headings_in_code_type(tmp_path: Path) -> None:
    text = "| calls | mean `reward` of all | strict acc |\n|---|---|---|\n| 0-14 | 1.5 | 0.9 |\n"
    text += "| 30\u201344 | **3.8** | **0.5** |\n"
    history = load(tmp_path, text).history
    assert column(history, "reward") == [(14, 1.5), (44, 3.8)]
    assert column(history, "rewards/strict acc/mean") == [(14, 0.9), (44, 0.5)]


def test_counts_of_groups_are_shares_where_the_row_says_of_how_many(tmp_path: Path) -> None:
    text = "step,score,batch/solve_none,batch/solve_all,batch/solve_partial\n1,0.1,48,1,15\n2,0.2,32,0,32\n"
    history = load(tmp_path, text, "log.csv").history
    assert column(history, "dead_groups/all_failed") == [(1, 0.75), (2, 0.5)]
    assert column(history, "dead_groups/all_solved") == [(1, pytest.approx(1 / 64)), (2, 0.0)]
    text = '{"step": 1, "mean_reward": 0.6, "groups_skipped": 5, "groups_total": 8}\n'
    history = load(tmp_path, text + text.replace(": 1,", ": 2,"), "log.jsonl").history
    assert column(history, "frac_reward_zero_std") == [(1, 0.625), (2, 0.625)]


def test_a_count_of_groups_alone_is_no_share(tmp_path: Path) -> None:
    text = "step,score,batch/solve_none,batch/solve_all\n1,0.1,48,1\n2,0.2,47,0\n"
    history = load(tmp_path, text, "log.csv").history
    assert not column(history, "dead_groups/all_failed")
    # Beside a count a 1 is one group, and not all of them.
    assert (1, 1.0) not in column(history, "dead_groups/all_solved")


def test_a_notebook_that_puts_blanks_around_its_slashes(tmp_path: Path) -> None:
    text = (
        "Step\tTraining Loss\treward\treward_std\tcompletions / mean_length\tcompletions / clipped_ratio\t"
        "rewards / format / mean\n1\t0.0\t0.5\t0.2\t200.5\t0.25\t0.125\n2\t0.0\t0.6\t0.2\t210.0\t0.5\t0.25\n"
    )
    history = load(tmp_path, text).history
    assert column(history, "completions/mean_length") == [(1, 200.5), (2, 210.0)]
    assert column(history, "completions/clipped_ratio") == [(1, 0.25), (2, 0.5)]
    assert column(history, "rewards/format/mean") == [(1, 0.125), (2, 0.25)]


def test_a_first_column_that_is_a_signal_is_no_step(tmp_path: Path) -> None:
    text = "| mean reward per step | KL |\n|---|---|\n| 0.5 | 0.01 |\n| 0.6 | 0.02 |\n"
    history = load(tmp_path, text).history
    assert column(history, "reward") == [(1, 0.5), (2, 0.6)]


def test_a_step_inside_an_epoch(tmp_path: Path) -> None:
    line = "Epoch:[1/1]({}/9751), Reward: {}, KL_ref: 0.0002, Actor Loss: 0.0000, Learning Rate: 0.00000030\n"
    history = load(tmp_path, line.format(10, 0.5) + line.format(20, 0.6)).history
    assert column(history, "reward") == [(10, 0.5), (20, 0.6)]


def test_a_minus_sign_of_typography(tmp_path: Path) -> None:
    text = (
        "| Step | Mean Reward | KL Divergence |\n|---|---|---|\n| 60 | +4.5 | \u221219.89 |\n| 70 | +4.1 | \u22125 |\n"
    )
    assert column(load(tmp_path, text).history, "kl") == [(60, -19.89), (70, -5.0)]
