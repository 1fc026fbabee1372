"""Decoding on a GPU: one copy of what rows share, static shapes, and a step that can be captured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from levelhead.policy.backends.base import PolicyLike
from levelhead.policy.backends.flex.attention import Kernel, Masks, Trees
from levelhead.policy.backends.flex.cache import SharedCache
from levelhead.policy.backends.sdpa import distinct
from levelhead.policy.backends.trees import tree_logits
from levelhead.policy.packing import trie
from levelhead.records import Prompt

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


class StaticDecoder:
    """A :class:`~levelhead.policy.backends.base.Decoder` with buffers of fixed size and captured steps.

    All prompts are one forest, so that a beginning which they have in common is computed once.  A step is captured
    anew whenever rows have left for a smaller batch, or sampled so much that their keys need more room.

    Args:
        policy: Whose model samples.
        model: It, or what computes the same.
        windows: Tokens that each layer looks back, ``None`` for all.
        kernel: Computes attention over the prompts.
        graphs: Capture the steps.
        prompts: Rendered.
        k: Rows a prompt.
        budget: Tokens that a row samples at most.
    """

    def __init__(
        self,
        policy: PolicyLike,
        model: nn.Module,
        windows: Sequence[int | None],
        kernel: Kernel,
        graphs: Graphs,
        prompts: Sequence[Prompt],
        k: int,
        budget: int,
    ) -> None:
        self._policy, self._model = policy, model
        self._windows, self._kernel, self._graphs, self._budget = windows, kernel, graphs, budget
        self._prompts, self._prompt_of = distinct(prompts, k)
        self._cache: SharedCache | None = None
        self._step: Step | None = None
        self._size = -1
        self._tokens = torch.zeros((0, 1), dtype=torch.long)

    def start(self) -> Tensor:
        """Compute every prompt once, and return the logits behind it, (rows, v) float32."""
        device = self._policy.device
        tokens, depths, paths, nodes = trie(self._prompts)
        last, order = torch.stack([path[-1] for path in paths]).unique(return_inverse=True)
        positions = torch.tensor([depths], device=device)
        trees = Trees(Masks(nodes, positions[0], self._windows), self._kernel, keep=True)
        ids = torch.tensor([tokens], device=device)
        logits = tree_logits(self._policy, self._model, ids, positions, trees, last.to(device))
        prompt_of = self._prompt_of.tolist()
        self._cache = SharedCache((trees.keys, trees.values), paths, prompt_of, self._windows, self._budget)
        return logits[order[self._prompt_of].to(device)]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row, (rows,), and return the logits behind it, (rows, v) float32."""
        cache = self._cache
        assert cache is not None  # noqa: S101 - start() comes first
        cache.make_room()
        if self._step is None or self._size != cache.size:
            self._step = None  # lets the memory of the last one go
            self._tokens = tokens.new_zeros((cache.slots, 1))
            self._step = self._graphs.capture(self._slots, tokens.device)
            self._size = cache.size
        self._tokens[: len(tokens), 0] = tokens
        logits = self._step()[: len(tokens)].clone()
        cache.advance()
        return logits

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but those at the given ascending positions."""
        assert self._cache is not None  # noqa: S101 - start() comes first
        self._cache.keep(rows)

    def _slots(self) -> Tensor:
        """(slots, v) logits of all slots; the same tensors in, whatever the step."""
        cache = self._cache
        assert cache is not None  # noqa: S101 - start() comes first
        return tree_logits(self._policy, self._model, self._tokens, cache.begin(), cache)
