"""A backend of vLLM's weight transfer that reads safetensors from a folder which trainer and server share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class Init(WeightTransferInitInfo):  # type: ignore[misc]
    """There is nothing to agree on."""


@dataclass
class Update(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One version of the weights.

    Attributes:
        paths: Of its files, each with whole weights by their checkpoint names.
    """

    paths: list[str] = field(default_factory=list)


class FilesEngine(WeightTransferEngine[Init, Update]):  # type: ignore[misc]
    """Loads what it is told of as vLLM loads a checkpoint: packed, sharded and quantised as the model wants it."""

    init_info_cls = Init
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Init) -> None:
        """Nothing needs to be opened."""

    def start_weight_update(self) -> None:
        """Make the layers take checkpoint weights again."""
        with torch.device(self.device):
            initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Let the layers make of them what they compute with."""
        with torch.device(self.device):
            finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, list[str]]) -> None:
        """Load one version; its reading is done when this returns."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Update) -> None:
        """Load the files, weight by weight.

        Raises:
            FileNotFoundError: A file is not there under its path; the model has not been touched.
        """
        if missing := [path for path in update_info.paths if not Path(path).is_file()]:
            raise FileNotFoundError(f"this server sees no file {missing[0]}: is the folder shared under this path?")
        self.model.load_weights(self._read(update_info.paths))

    def shutdown(self) -> None:
        """Do nothing: the engine holds no connection."""

    def _read(self, paths: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        for path in paths:
            with safe_open(path, "pt", device=str(self.device)) as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    yield name, file.get_tensor(name)
