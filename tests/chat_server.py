"""A real OpenAI-compatible chat server on this machine: ``transformers serve`` with a tiny random model."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from levelhead.contrib.workflow.problems import generate

COMMAND = Path(sys.executable).with_name("transformers")
MISSING = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]

needs_server = pytest.mark.skipif(
    not COMMAND.exists() or bool(MISSING), reason=f"transformers serve needs {', '.join(MISSING) or COMMAND}"
)


class Server:
    """``transformers serve`` on a port of its own, with a tiny random model."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.model = model
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait_s: float = 180) -> None:
        command = [str(COMMAND), "serve", str(self.model), "--device", "cpu", "--host", "127.0.0.1"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"the server ended by itself:\n{self.log.read_text()[-2000:]}")
            try:
                if httpx2.get(f"http://127.0.0.1:{self.port}/health", timeout=2).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.3)
        pytest.fail(f"the server did not come up:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


def tiny_model(folder: Path) -> Path:
    """Save a random model of a few thousand weights, with a tokenizer of its own."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from levelhead.text.tiny import train_tokenizer

    tokenizer = train_tokenizer([problem.question for problem in generate(120)], 600)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
