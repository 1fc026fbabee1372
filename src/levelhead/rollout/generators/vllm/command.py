"""The command that starts a server as a recipe needs it; needs neither torch nor vLLM."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlparse

from levelhead.errors import InputError
from levelhead.recipe.generator import Vllm
from levelhead.recipe.recipe import Recipe

CPU_TOKENS = 32_768
"""Tokens of one pass on a CPU: seeded draws fail there where a prompt is read in several passes."""
CPU_CACHE_GIB = 2
"""Memory of a CPU server's KV cache, unless ``VLLM_CPU_KVCACHE_SPACE`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that starts one server.

    Attributes:
        url: Where it will be.
        variables: Of the environment, besides those that are there.
        arguments: The program and its arguments.
        key: Environment variable that holds its key, if it has one.
    """

    url: str
    variables: Mapping[str, str]
    arguments: Sequence[str]
    key: str | None = None

    @property
    def shell(self) -> str:
        """As a shell takes it."""
        names = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        names += [f'VLLM_API_KEY="${self.key}"'] if self.key else []
        return " ".join([*names, *map(shlex.quote, self.arguments)])


def engine_of(recipe: Recipe) -> Vllm:
    """Return the recipe's section of servers.

    Raises:
        InputError: It samples by itself.
    """
    if not isinstance(recipe.generator, Vllm):
        raise InputError("generator.kind is local, and needs no server; set generator: {kind: vllm, urls: [...]}")
    return recipe.generator


def serve_command(
    recipe: Recipe, url: str, model: str, *, dtype: str, cpu: bool = False, python: str | None = None
) -> Command:
    """Return the command of one server.

    Args:
        recipe: With servers.
        url: Of the server.
        model: Hub name or folder.
        dtype: Type that it computes in: the trainer's.
        cpu: Whether it runs on a CPU.
        python: Interpreter of the environment that has vLLM; the ``vllm`` on the path unless given.
    """
    engine, parts = engine_of(recipe), urlparse(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    program = ["vllm", "serve", model]
    if python is not None or cpu:  # the program is missing from vLLM's CPU wheels
        program = [python or "python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    arguments = [
        *program,
        *("--served-model-name", engine.model, "--host", host, "--port", str(port), "--dtype", dtype),
        *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", "--enable-scale-out"),
        *("--max-num-seqs", str(_rows(engine))),
        *_model_options(recipe),
        *_sync_options(recipe, engine),
    ]
    if engine.gpu_share is not None:
        arguments += ["--gpu-memory-utilization", f"{engine.gpu_share:g}"]
    if engine.sleep:
        arguments += ["--enable-sleep-mode"]
    # The routes that take weights, and those that sleep, are among those of development.
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    if engine.sync == "adapter":
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if cpu:
        arguments += ["--enforce-eager", "--max-num-batched-tokens", str(CPU_TOKENS)]
        variables |= {"VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB), "VLLM_HOST_IP": host}
    return Command(url, variables, arguments, engine.api_key_env)


def _rows(engine: Vllm) -> int:
    """Requests that one server has at work at once."""
    return max(1, -(-engine.concurrency // len(engine.urls)))


def _model_options(recipe: Recipe) -> list[str]:
    model = recipe.model
    options = ["--revision", model.revision] if model.revision else []
    options += ["--tokenizer", model.tokenizer] if model.tokenizer else []
    return options + (["--trust-remote-code"] if model.trust_remote_code else [])


def _sync_options(recipe: Recipe, engine: Vllm) -> list[str]:
    if engine.sync != "adapter":
        return ["--weight-transfer-config", json.dumps({"backend": engine.sync})]
    lora = recipe.model.lora
    rank = next((size for size in _RANKS if lora is not None and lora.r <= size), None)
    if rank is None:
        raise InputError(f"model.lora.r: vLLM serves adapters of rank {_RANKS[-1]} at most; lower it, or sync: files")
    return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2"]  # the next one is loaded beside it


_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
