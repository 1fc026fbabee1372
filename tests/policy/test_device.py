"""``model.device: auto`` takes an Apple GPU where it computes what the CPU computes, and says why where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from levelhead.errors import InputError
from levelhead.policy import device


@pytest.fixture(autouse=True)
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without CUDA whose Apple GPU is, here, the CPU."""
    probe = device._probe
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(device, "_probe", lambda name: probe("cpu" if name == "mps" else name))
    device.difference.cache_clear()
    yield
    device.difference.cache_clear()


def wrong(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    probe = device._probe
    monkeypatch.setattr(device, "_probe", lambda name: change(*probe(name)) if name == "mps" else probe(name))


def test_auto_takes_an_apple_gpu_that_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.resolve_device("auto").type == "mps"
    assert device.resolve_dtype("auto", torch.device("mps")) == torch.float32
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda logp, gradient: (logp + 0.01, gradient), "log-probabilities differ by 0.01 nats"),
        (lambda logp, gradient: (logp * float("nan"), gradient), "log-probabilities differ by nan"),
        (lambda logp, gradient: (logp, gradient * 1.1), "gradients differ by 0.1"),
    ],
)
def test_one_that_differs_is_left_and_the_reason_said_once(
    change: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong(monkeypatch, change)
    assert [device.resolve_device("auto").type for _ in range(2)] == ["cpu", "cpu"]
    (line,) = capsys.readouterr().err.splitlines()
    assert f"auto takes the CPU, for mps does not agree with it: {reason}" in line


def test_one_that_lacks_an_operation_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> Any:
        raise NotImplementedError("aten::thing is not there")

    wrong(monkeypatch, raises)
    assert device.resolve_device("auto").type == "cpu"
    assert "aten::thing" in device.difference("mps")


def test_one_that_is_asked_for_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match="torch sees no Apple GPU; use auto or cpu"):
        device.resolve_device("mps")
