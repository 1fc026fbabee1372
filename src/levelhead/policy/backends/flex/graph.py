"""The seam for CUDA graphs: a step of static shapes is captured once and played again, without Python in between."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

Step = Callable[[], Tensor]
"""Reads and writes tensors that stay where they are, and gives one that the next call may overwrite."""


class Graphs:
    """Captures steps on CUDA; elsewhere, and where a capture has failed, a step is run as it is.

    A step is run once before it is captured, so it must bear being run twice.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        """Why steps are not captured on CUDA, in a few words."""

    def capture(self, step: Step, device: torch.device) -> Step:
        """Return what plays a step again, or the step itself."""
        if device.type != "cuda" or self.refused is not None:
            return step
        try:
            return captured(step, device)
        except (RuntimeError, ValueError, TypeError) as error:
            self.refused = str(error).strip().partition("\n")[0]
            _log.warning("decoding without CUDA graphs: a step cannot be captured (%s)", self.refused)
            return step


def captured(step: Step, device: torch.device) -> Step:
    """Capture a step in a CUDA graph.

    Raises:
        RuntimeError: The step waits for the GPU, or does something else that a graph cannot hold.
    """
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up in the first run
            step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may train meanwhile
            result = step()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
