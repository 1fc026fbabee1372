"""The policy: a causal language model, its codec, and the log-probabilities of given tokens."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from levelhead.policy.adapter import adapted_weight, join_adapters
from levelhead.policy.backends.base import TREES, Backend
from levelhead.policy.backends.choose import choose_backend
from levelhead.policy.head import token_statistics
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.quiet import without_progress_bars
from levelhead.text.codec import Codec

REFERENCE_ADAPTER = "reference"


@dataclass(frozen=True, slots=True)
class TokenStats:
    """What the policy says of m given tokens.

    Attributes:
        logp: (m,) log-probability of each token at the asked temperature, float32.
        entropy: (m,) entropy of the distribution it was sampled from, in nats, float32.
    """

    logp: Tensor
    entropy: Tensor


class Policy:
    """A model that is trained, with the codec that made its tokens.

    Args:
        model: A causal language model, or a PEFT model around one.
        codec: Its tokenizer and chat template.
        compute_dtype: Type of matrix products; where it is not that of the weights, autocast is used.
    """

    def __init__(self, model: Any, codec: Codec, compute_dtype: torch.dtype = torch.float32) -> None:
        self.model = model
        self.codec = codec
        self.compute_dtype = compute_dtype
        self.device: torch.device = next(model.parameters()).device
        self.lora = hasattr(model, "peft_config")
        self.base: PreTrainedModel = model.get_base_model() if self.lora else model
        if self.lora:
            join_adapters(self.base)
        self.shares_prefixes = _can_branch(self.base)
        """Whether a tree-shaped attention mask, one for all layers, reproduces the model."""
        self.runs_on = "auto"
        """Name of the backend to run on, or ``auto`` for the fastest that supports the model."""
        self._backend: Backend | None = None
        self._head = _Head.of(self.base)
        self._reference: nn.Module | str | None = None
        self.starts_trained = False
        """Whether the adapter had been trained when the run began, so that the base alone is not the first policy."""
        self.version = 0
        """Optimizer updates of the present stage that the weights have seen."""
        self._of_copy: tuple[nn.Parameter, ...] | None = None
        self.merge_bytes = 4 << 30
        """What copies of weights, with an adapter merged or laid out anew, may take while sampling."""

    @property
    def context(self) -> int:
        """Longest sequence the model was built for, in tokens."""
        return int(getattr(self.base.config, "max_position_embeddings", 1 << 20))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The trained weights of linear layers, the embedding and the output layer left out."""
        ends = (self.base.get_input_embeddings(), self.base.get_output_embeddings())
        outer = {id(end.weight) for end in ends if end is not None}
        layers = {id(m.weight): m.weight for m in self.model.modules() if isinstance(m, nn.Linear)}
        trained = {id(parameter) for parameter in self.parameters}
        return [p for key, p in layers.items() if isinstance(p, nn.Parameter) and key in trained - outer]

    @property
    def backend(self) -> Backend:
        """How the model is run; chosen when it is first asked for."""
        if self._backend is None:
            self._backend = choose_backend(self)
        return self._backend

    sum_over_ranks: Callable[[Tensor], None] | None = None
    """Adds up a number over the processes, in place, where each holds a piece of the weights; ``None`` where one holds
    them whole, and sums over its tensors are whole sums."""

    @property
    def sharded(self) -> bool:
        """Whether each process holds a piece of the weights."""
        return self.sum_over_ranks is not None

    @property
    def samples_from(self) -> Policy:
        """The policy that completions are sampled from: this one, or a copy of it with the weights of the last sync."""
        return self

    def sync_sampler(self) -> None:
        """Bring the copy that is sampled from up to date, where there is one."""

    def run_like(self, other: Policy) -> None:
        """Run on the backend of a policy of the same architecture, whose model has been tried there already."""
        self._backend = other.backend

    def forward(self, module: nn.Module, **inputs: Any) -> Any:
        """Run the model, its decoder or the reference on inputs, in the precision that sampling and training share.

        Every pass of tokens through the policy's modules goes through here.
        """
        with self.autocast():
            return module(**inputs)

    def pack(self, sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
        """Pack sequences for this model; see :func:`levelhead.policy.packing.pack`."""
        return self.backend.pack(self, sequences, tokens)

    @property
    def packs_trees(self) -> bool:
        """Whether :meth:`pack` computes a prefix that sequences share once."""
        return self.backend.shares(self)

    @property
    def drops_attention(self) -> bool:
        """Whether an attention layer has dropout."""
        modules = self.base.modules()
        return any(isinstance(p := getattr(m, "attention_dropout", 0), float) and p > 0 for m in modules)

    def score(self, batch: MicroBatch, temperature: float = 1.0) -> TokenStats:
        """Log-probability and entropy of every completion token of a micro-batch, differentiable."""
        batch = batch.to(self.device)
        hidden = self.backend.hidden(self, self.base, batch)
        return self._statistics(self._head, hidden, batch, temperature)

    @torch.no_grad()
    def reference_logp(self, batch: MicroBatch, temperature: float = 1.0) -> Tensor:
        """(m,) log-probabilities under the reference policy.

        Raises:
            RuntimeError: No reference is kept; call :meth:`keep_reference` first.
        """
        if self._reference is None:
            raise RuntimeError("this policy keeps no reference; call keep_reference() before the first update")
        batch = batch.to(self.device)
        if isinstance(self._reference, nn.Module):
            hidden = self.backend.hidden(self, self._reference, batch)
            return self._statistics(_Head.of(self._reference), hidden, batch, temperature).logp
        with self._reference_adapter():
            hidden = self.backend.hidden(self, self.base, batch)
            return self._statistics(self._head, hidden, batch, temperature).logp

    @contextlib.contextmanager
    def under_head(self, weight: Tensor) -> Iterator[None]:
        """Score with another output embedding inside; the input embedding keeps its own."""
        own = self._head
        module = copy.copy(own.module)
        module._parameters = {**own.module._parameters}
        module.weight = nn.Parameter(weight.to(self.device, own.module.weight.dtype), requires_grad=False)
        self._head = replace(own, module=module)
        try:
            yield
        finally:
            self._head = own

    def keep_reference(self, *, trained: bool) -> None:
        """Freeze today's policy as the reference.

        With LoRA it costs an adapter at most: nothing where the adapter has not been trained yet (the reference
        is the base model, adapter switched off).  Without, it is a frozen copy of the weights.

        Args:
            trained: Whether the adapter has been trained, by SFT before, so that the base model alone is no
                longer today's policy; one that the run began with has been, whatever is said here.
        """
        if not self.lora:
            self._reference = self._frozen_copy()
        elif trained or self.starts_trained:
            self._copy_adapter()
            self._reference = REFERENCE_ADAPTER
        else:
            self._reference = ""

    def resume_reference(self) -> None:
        """Take up the reference that a loaded checkpoint brought as an adapter, or the base model below it."""
        has_copy = self.lora and REFERENCE_ADAPTER in self.model.peft_config
        self._reference = REFERENCE_ADAPTER if has_copy else ""

    def drop_reference(self) -> None:
        """Let go of the reference and its memory."""
        self._reference = None

    @property
    def keeps_reference(self) -> bool:
        """Whether a reference is kept."""
        return self._reference is not None

    def inference_copy(self, trained: Iterable[nn.Parameter] | None = None) -> Policy:
        """A policy of the same weights that nobody trains: frozen weights are shared, those trained here are copied.

        It keeps its own modes and hooks, so that another thread may draw from it; :meth:`follow` brings it up to date.

        Args:
            trained: The weights to copy; those that require a gradient unless given.
        """
        copied = {id(weight) for weight in (self.parameters if trained is None else trained)}
        _ = self.backend  # chosen before the copy is made, which then computes its attention in the same way
        shared = {id(weight): weight for weight in self.model.parameters() if id(weight) not in copied}
        model = copy.deepcopy(self.model, {**shared})
        inference_copy = Policy(model.requires_grad_(False).eval(), self.codec, self.compute_dtype)
        inference_copy.run_like(self)
        inference_copy.merge_bytes = self.merge_bytes
        inference_copy.version = self.version
        # Now: while another thread samples, the modules hold weights of another type (backends.converted).
        inference_copy._of_copy = tuple(model.parameters())
        return inference_copy

    def copied(self, other: Policy) -> list[Tensor]:
        """The weights of an inference copy that are its own and not shared with another policy of the same model."""
        pairs = zip(self._of_copy or self.model.parameters(), other.model.parameters(), strict=True)
        return [mine.detach() for mine, theirs in pairs if mine is not theirs]

    @torch.no_grad()
    def follow(self, other: Policy) -> None:
        """Take over the weights of another policy of the same model."""
        for mine, theirs in zip(self.model.parameters(), other.model.parameters(), strict=True):
            if mine is not theirs:
                mine.copy_(theirs)
        self.version = other.version

    def save(self, folder: Path) -> None:
        """Write model (or adapter) and tokenizer in Hugging Face format; whole models stop where this policy stops."""
        self._write(folder)

    def _write(self, folder: Path, **options: Any) -> None:
        generation = getattr(self.model, "generation_config", None)
        if generation is not None:
            generation.eos_token_id = sorted(self.codec.stop_ids)
        options |= {"save_embedding_layers": False} if self.lora else {}
        with without_progress_bars():
            self.model.save_pretrained(str(folder), **options)
        self.codec.save(folder)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter that is trained, and nothing else."""
        active = self.model.active_adapter
        self.model.save_pretrained(str(folder), selected_adapters=[active], save_embedding_layers=False)

    def reference_weights(self) -> dict[str, Tensor] | None:
        """Weights of a reference that is a copy, for a checkpoint; ``None`` where there is nothing to save."""
        return dict(self._reference.state_dict()) if isinstance(self._reference, nn.Module) else None

    def reference_named(self) -> list[tuple[str, Tensor]]:
        """Weights of the reference that are its own, by name: of a copy all, of an adapter those, else none."""
        if isinstance(self._reference, nn.Module):
            return [(name, weight) for name, weight in self._reference.named_parameters()]
        marked = f".{REFERENCE_ADAPTER}."
        return [(name, weight) for name, weight in self.model.named_parameters() if marked in name]

    def load_reference_weights(self, weights: dict[str, Tensor]) -> None:
        """Restore a reference that :meth:`reference_weights` gave."""
        if not isinstance(self._reference, nn.Module):
            self._reference = self._frozen_copy()
        self._reference.load_state_dict(weights)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Train mode inside (gradient checkpointing needs it), evaluation mode outside."""
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()

    def disable_dropout(self) -> None:
        """Set every dropout to zero, so that sampler, trainer and reference compute the same policy."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for name in ("attention_dropout", "hidden_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"):
            for module in self.model.modules():
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision that sampling and training share."""
        if self.compute_dtype == torch.float32 or self.compute_dtype == self.base.dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    @staticmethod
    def _statistics(head: _Head, hidden: Tensor, batch: MicroBatch, temperature: float) -> TokenStats:
        logp, entropy = token_statistics(
            hidden,
            adapted_weight(head.module),
            batch.targets,
            bias=head.module.bias,
            temperature=temperature,
            softcap=head.softcap,
            scale=head.scale,
        )
        return TokenStats(logp, entropy)

    @contextlib.contextmanager
    def _reference_adapter(self) -> Iterator[None]:
        if self._reference == "":
            with self.model.disable_adapter():
                yield
            return
        active = self.model.active_adapter
        self.model.set_adapter(REFERENCE_ADAPTER)
        try:
            yield
        finally:
            self.model.set_adapter(active)

    def _frozen_copy(self) -> nn.Module:
        """A copy that reads the micro-batches that are packed for the policy."""
        _ = self.backend  # chosen before the copy is made, which then computes its attention in the same way
        clone: nn.Module = copy.deepcopy(self.base)
        return clone.requires_grad_(False).eval()

    def _copy_adapter(self) -> None:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        active = self.model.active_adapter
        if REFERENCE_ADAPTER not in self.model.peft_config:
            self.model.add_adapter(REFERENCE_ADAPTER, self.model.peft_config[active])
        weights = get_peft_model_state_dict(self.model, adapter_name=active)
        set_peft_model_state_dict(self.model, weights, adapter_name=REFERENCE_ADAPTER)
        self.model.set_adapter(active)
        for name, parameter in self.model.named_parameters():
            if f".{REFERENCE_ADAPTER}." in name:
                parameter.requires_grad_(False)


@dataclass(frozen=True, slots=True)
class _Head:
    """The output embedding and what the architecture does to its logits."""

    module: nn.Linear
    softcap: float | None
    scale: float

    @classmethod
    def of(cls, model: Any) -> _Head:
        config = model.config
        module = model.get_output_embeddings()
        scale = 1.0
        if getattr(config, "logit_scale", None) is not None:
            scale = float(config.logit_scale)
        elif getattr(config, "logits_scaling", None) is not None:
            scale = 1.0 / float(config.logits_scaling)
        return cls(module, getattr(config, "final_logit_softcapping", None), scale)


def _can_branch(model: PreTrainedModel) -> bool:
    """Whether a tree-shaped attention mask reproduces the model: every layer is plain full attention."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    window = getattr(model.config, "sliding_window", None) if kinds == {"full_attention"} else None
    uses_window = window is not None and getattr(model.config, "use_sliding_window", True)
    implementation = getattr(model.config, "_attn_implementation", "sdpa")
    recurrent = bool(getattr(model, "_is_stateful", False))
    return kinds == {"full_attention"} and not uses_window and not recurrent and implementation in ("sdpa", TREES)
