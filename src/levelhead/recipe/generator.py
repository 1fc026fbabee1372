"""``generator``: where completions come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from levelhead.section import Section


class Local(Section):
    """The model that is being trained samples too, in the trainer's own process."""

    kind: Literal["local"] = "local"
    """``local``."""


class Vllm(Section):
    """Servers of vLLM that hold a copy of the policy; ``levelhead serve policy`` prints the command that starts one."""

    kind: Literal["vllm"]
    """``vllm``."""
    urls: list[Annotated[str, Field(pattern=r"^https?://[^/?#]+/?$")]] = Field(min_length=1)
    """Servers, without a path: ``http://10.0.0.2:8000``.  Requests go to the one with the fewest under way."""
    sync: Literal["adapter", "files", "nccl"] = "files"
    """How weights get there: ``adapter`` loads the LoRA adapter under a new name for every version, ``files`` writes
    all weights to ``shared``, ``nccl`` broadcasts them from GPU to GPU."""
    shared: str | None = None
    """Folder that trainer and servers see under the same path, for ``adapter`` and ``files``."""
    model: str = "policy"
    """Name under which the servers serve the model (``--served-model-name``)."""
    api_key_env: str | None = None
    """Environment variable that holds the servers' ``--api-key``.  It guards generation, not the routes that take
    weights: let nobody but the trainer reach those."""
    in_flight: Literal["wait", "keep"] = "wait"
    """What becomes of requests that are under way at a weight sync: ``wait`` lets them end first, ``keep`` goes on with
    the new weights in the middle of them and records which token came from which."""
    concurrency: int = Field(256, ge=1, le=65_536)
    """Requests under way at once, over all servers and all training processes."""
    timeout_s: float = Field(600.0, gt=0)
    """Longest time for one completion."""
    sync_timeout_s: float = Field(300.0, gt=0)
    """Longest time for one step of a weight sync on one server."""
    max_mismatch: float | None = Field(None, gt=0)
    """Largest mean gap between the server's and the trainer's log-probabilities of the probe after a sync, in nats a
    token.  Unless given: 1e-4 in float32, and four times what rounding does to the model in a coarser type."""
    gpu_share: float | None = Field(None, gt=0, le=1)
    """Share of a GPU's memory that the server takes (``--gpu-memory-utilization``), where it shares the trainer's."""
    sleep: bool = False
    """The servers give up their memory while the policy trains, and wake up to sample."""

    @model_validator(mode="after")
    def _a_folder_is_shared(self) -> Self:
        if self.sync in ("adapter", "files") and self.shared is None:
            raise ValueError(
                f"sync: {self.sync} passes weights through a folder; set generator.shared to one that the trainer and "
                "every server see under the same path"
            )
        return self

    @model_validator(mode="after")
    def _urls_differ(self) -> Self:
        urls = [url.rstrip("/") for url in self.urls]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"urls: {twice[0]} stands there twice")
        return self


def _named(value: Any) -> Any:
    """Take a bare name for a section with nothing else in it, and a section without ``kind`` for ``local``."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": "local", **value} if isinstance(value, dict) else value


AnyGenerator = Annotated[
    Annotated[Local | Vllm, Field(discriminator="kind")],
    BeforeValidator(_named, json_schema_input_type=Literal["local"] | Local | Vllm),
]
