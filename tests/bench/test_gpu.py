"""``bench/gpu.py`` at toy size on a CPU: every kind of row is made, and what goes wrong is a row."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_gpu", BENCH / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_whole_script_runs_at_toy_size(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "gpu.jsonl"
    monkeypatch.setattr(gpu, "TESTS", ("tests/training/sharding/test_gpu.py",))  # one file is enough to start pytest
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--toy", "--smallest", "--repeats", "1", "--out", str(out)])
    gpu.main()
    rows = lines(out)
    assert {row["kind"] for row in rows} == {"machine", "agree", "tests", "plan", "ours", "trl", "end"}
    assert not [row for row in rows if "error" in row and row["kind"] != "trl"]
    assert all(row["agrees"] for row in rows if row["kind"] == "agree" and "skipped" not in row)
    ours = [row for row in rows if row["kind"] == "ours"]
    assert {row["backend"] for row in rows if row["kind"] == "agree"} == {"cpu", "flex", "sdpa"}
    assert {row["backend"] for row in ours} == {"cpu", "sdpa"}
    assert all(row["seconds"] > 0 and row["peak_bytes"] > 0 and row["tokens_a_second"] > 0 for row in ours)
    assert all(row["utilisation"] is None and row["why_no_shares"] for row in ours)


def test_the_first_step_and_the_table_are_run_apart(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for part in ("first", "table"):
        monkeypatch.setattr(gpu.Measurements, part, lambda self, part=part: ran.append(part))
    for flag in ("--first", "--table"):
        monkeypatch.setattr(sys, "argv", ["gpu.py", flag, "--toy", "--out", str(tmp_path / "rows.jsonl")])
        gpu.main()
    assert ran == ["first", "table"]


def test_what_fails_is_a_row_and_the_rest_goes_on(gpu: Any, tmp_path: Path) -> None:
    record = gpu.Record(tmp_path / "rows.jsonl", 60.0, toy=True)

    def fails() -> dict[str, Any]:
        raise torch.OutOfMemoryError("no memory left")

    record.measure("ours", fails, shape="a")
    record.measure("ours", lambda: {"seconds": 1.0}, shape="b")
    one, two = lines(tmp_path / "rows.jsonl")
    assert "no memory left" in one["error"]
    assert two["seconds"] == 1.0


def test_what_the_time_does_not_allow_is_left_out_and_said(gpu: Any, tmp_path: Path) -> None:
    record = gpu.Record(tmp_path / "rows.jsonl", 30.0, toy=False)
    started = time.monotonic()
    record.measure("trl", lambda: time.sleep(100) or {}, shape="a")
    assert time.monotonic() - started < 60
    assert "left" in lines(tmp_path / "rows.jsonl")[0]["left_out"]


def test_a_measurement_that_outlasts_the_time_ends_the_process_and_its_rows_stay(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    script = (
        f"import importlib.util as u, time; s = u.spec_from_file_location('g', {str(BENCH / 'gpu.py')!r}); "
        "g = u.module_from_spec(s); s.loader.exec_module(g); import pathlib; "
        f"r = g.Record(pathlib.Path({str(out)!r}), 5.0, toy=True); r.stop_at_the_end(0.0); r.write(kind='machine'); "
        "r.measure('ours', lambda: time.sleep(60) or {}, shape='hangs')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert run.returncode == 3, run.stderr
    first, last = lines(out)
    assert first["kind"] == "machine"
    assert last["cut"] == "ours hangs"


def test_trl_gets_micro_batches_of_no_more_tokens_than_ours(gpu: Any) -> None:
    from gpulib.shapes import SHAPES

    for shape in SHAPES:
        w, n = shape.work, gpu.pieces(shape)
        assert w.rows % n == 0
        assert w.rows // n * (w.prompt + w.answer) <= shape.tokens
    assert [gpu.pieces(shape) for shape in SHAPES] == [4, 4, 2]


def test_a_backend_that_looks_ahead_does_not_agree(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpulib import agree

    from levelhead.policy.backends.cpu import attention
    from levelhead.policy.backends.cpu.backend import Cpu

    plain = attention.fused
    kind = agree.backends()[0]
    assert kind is Cpu
    rows = agree.compare("qwen2", torch.device("cpu"), 2, 32)
    assert all(row["agrees"] for row in rows)
    supports = Cpu.supports

    def spoilt(policy: Any) -> str | None:
        with monkeypatch.context() as whole:
            whole.setattr(attention, "fused", plain)
            return supports(policy)

    def without_mask(query: Any, key: Any, value: Any, scale: float, **_: Any) -> Any:
        return plain(query, key, value, scale)

    monkeypatch.setattr(Cpu, "supports", staticmethod(spoilt))
    monkeypatch.setattr(attention, "fused", without_mask)
    rows = agree.compare("qwen2", torch.device("cpu"), 2, 32)
    assert not any(row["agrees"] for row in rows if row["backend"] == "cpu")


@pytest.mark.parametrize(
    ("name", "flops"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-40GB", 312e12), ("cpu", None)]
)
def test_a_device_has_its_own_peak_or_none(gpu: Any, name: str, flops: float | None) -> None:
    from gpulib.peaks import peak_of

    peak = peak_of(name)
    assert (peak.flops if peak else None) == flops


def test_shapes_are_those_of_the_models(gpu: Any) -> None:
    from gpulib.shapes import SHAPES
    from speedlib.workloads import model_config
    from transformers import AutoModelForCausalLM

    sizes = {}
    for shape in SHAPES:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config(shape.work))
        sizes[shape.work.name] = sum(p.numel() for p in model.parameters())
    assert sizes["Qwen2.5-0.5B full"] == 494_032_768
    assert sizes["Llama-3-8B LoRA"] == 8_030_261_248
    assert sizes["LFM2-350M full"] == 354_483_968
