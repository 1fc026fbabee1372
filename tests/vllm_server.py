"""Real vLLM servers for tests, started by the product's own command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.recipe import validate
from levelhead.rollout.generators.vllm.command import serve_command

START_S = 400
RECIPES = Path(__file__).parents[1] / "recipes"
LORA = {"r": 8, "alpha": 16}


def python() -> str:
    """The interpreter of the environment that ``LEVELHEAD_VLLM`` names; skips the test where there is none."""
    folder = os.environ.get("LEVELHEAD_VLLM")
    if not folder:
        pytest.skip("LEVELHEAD_VLLM names no environment with vllm (docs/scale.md says how to make one)")
    path = Path(folder) / "bin" / "python"
    if not path.is_file():
        pytest.skip(f"LEVELHEAD_VLLM: {path} is not there")
    return str(path)


class Processes:
    """Servers of one test.

    Args:
        folder: Where they log, and where weights are shared.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        sync: str,
        dtype: str = "float32",
        *,
        cpu: bool = True,
        options: Sequence[str] = (),
        url: str | None = None,
        **engine: Any,
    ) -> str:
        """Start a server and wait for it; returns its address.

        Args:
            sync: See the recipe's ``generator``.
            dtype: See the recipe's ``model``.
            cpu: Whether it runs on a CPU.
            options: Of vLLM, besides those of the product's command.
            url: Where; at a free port unless given.
            engine: Other keys of ``generator``.
        """
        if url is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                url = f"http://127.0.0.1:{free.getsockname()[1]}"
        recipe = validate(settings(self._folder, url, sync, dtype, **engine))
        command = serve_command(recipe, url, str(recipe.model.source), dtype=dtype, cpu=cpu, python=python())
        # Beside the suite a server has a core or less.
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        log = self._folder / f"server-{len(self._processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command.arguments, *options],
                env={**inherited, **quiet, **command.variables},
                stdout=file,
                stderr=file,
                process_group=0,  # not a session of its own, which a kernel may share its cores out to by session
            )
        self._processes.append(process)
        _wait_for(url, process, log)
        return url

    def kill(self) -> None:
        """End the newest server at once, with the processes that it has started, as a machine's end does."""
        os.killpg(self._processes[-1].pid, signal.SIGKILL)
        self._processes[-1].wait(60)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-2000:]
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"no server within {START_S} s: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def settings(folder: Path, url: str, sync: str, dtype: str = "float32", **engine: Any) -> dict[str, Any]:
    """A recipe like dual-tiny's, cut down, that draws on a server."""
    model: dict[str, Any] = {"preset": "base-tiny", "dtype": dtype}
    if sync == "adapter":
        model["lora"] = LORA
    return {
        "name": "dual",
        "check": False,
        "threads": 1,
        "model": model,
        "generator": on(folder, url, sync, concurrency=64, **engine),
        "tasks": [{"kind": "fairness", "items": 200}, {"kind": "faithfulness", "items": 200}],
        "sft": {"steps": 2, "batch_size": 16, "optimizer": {"learning_rate": 1e-3}},
        "grpo": {
            "steps": 2,
            "batch_size": 32,
            "sampling": {"max_new_tokens": 32},
            "loss": {"importance": "token_truncate"},
            "merge": {"kind": "cagrad"},
            "optimizer": {"learning_rate": 3e-4},
        },
        "eval": {"items": 8, "final_items": 8, "constant": False, "sampling": {"max_new_tokens": 32}},
    }


def on(folder: Path, url: str, sync: str, **engine: Any) -> dict[str, Any]:
    """The section of a server."""
    return {"kind": "vllm", "urls": [url], "sync": sync, "shared": str(folder / "shared"), **engine}


def shipped(name: str, folder: Path, url: str, sync: str, **changes: Any) -> dict[str, Any]:
    """A recipe that ships, on a server; ``changes`` are merged into its sections."""
    content: dict[str, Any] = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    content |= {"check": False, "threads": 1, "generator": on(folder, url, sync)}
    content["grpo"].setdefault("loss", {})["importance"] = "token_truncate"
    for section, keys in changes.items():
        content[section] = {**content.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return content
