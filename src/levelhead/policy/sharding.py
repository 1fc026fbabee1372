"""A policy whose weights are divided over the processes of a run, by FSDP2.

Each decoder layer is a unit of its own and the rest of the model another: a unit's weights are gathered before it
computes and let go after it.  Gathering is a collective, so every process makes the same passes in the same order; what
a pass gives (:meth:`ShardedPolicy.score`) is only used on all processes or on none.

Gradients are added up over the processes, not averaged: each has its own sequences, and denominators are those of the
whole update.  A process that samples keeps the weights whole as well (:attr:`ShardedPolicy.sampler`): the processes
decode different numbers of tokens, which no collective survives.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from levelhead.objective.numerics import local
from levelhead.policy.handing import Handing, anywhere, hand_out_rest, skeleton
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import REFERENCE_ADAPTER, Policy, TokenStats

Reference = Literal["none", "copy", "adapter", "base"]
"""What the reference will be: none, a second model, a second adapter, or the base model below the adapter."""

_INSIDE = "levelhead_inside"
"""Name under which a model gets the method that every pass of tokens runs through."""


def full(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor, gathered from all processes; any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def piece(whole: Tensor, like: Tensor) -> Tensor:
    """Return this process's piece of a whole tensor, divided as ``like`` is, or all of it where that is not."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    pieces = torch.chunk(whole, mesh.size(), dim=0)
    rank = mesh.get_local_rank()
    return pieces[rank] if rank < len(pieces) else whole[:0]


def as_sharded(piece_of_it: Tensor, like: Tensor) -> Tensor:
    """Return the sharded tensor that pieces on all processes make up, laid out as ``like``."""
    if not isinstance(like, DTensor):
        return piece_of_it
    whole: Tensor = DTensor.from_local(
        piece_of_it, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole


def _add_up(tensor: Tensor) -> None:
    dist.all_reduce(tensor)


def shard_policy(
    policy: Policy, *, reference: Reference = "none", samples: bool = True, device: torch.device | None = None
) -> ShardedPolicy:
    """Divide a policy's weights over the processes of the default group.

    Args:
        policy: Whole and the same on every process, or on the first one alone, and bare (on the meta device) on the
            others.  Not to be used any more, but as the copy that is sampled from.
        reference: What :meth:`ShardedPolicy.keep_reference` will be asked for: room for it is made now.
        samples: Whether to keep the whole policy for sampling.
        device: Of the pieces; where the policy is unless given.

    Raises:
        InputError: The processes have built different models.
    """
    device = device or policy.device
    handed_out = anywhere(policy.device.type == "meta")
    if not handed_out:
        _ = policy.backend  # chosen on the whole model, which it tries a few passes on
    if reference == "adapter" and REFERENCE_ADAPTER not in policy.model.peft_config:
        policy.keep_reference(trained=True)
        policy.drop_reference()
    trained = _bare(policy) if samples else policy
    second = skeleton(trained.base).requires_grad_(False).eval() if reference == "copy" else None
    if samples:
        policy.model.requires_grad_(False).eval()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    weights: dict[str, Tensor] = dict(policy.base.named_parameters())
    _shard_model(trained.base, mesh, Handing(trained.base, weights, device, handed_out=handed_out))
    if second is not None:
        _shard_model(second, mesh, Handing(second, {}, device, handed_out=False))
    trained.device = device
    sharded = ShardedPolicy(trained, policy if samples else None, second)
    if handed_out:
        for model in (trained.base, *((second,) if second is not None else ())):
            hand_out_rest(model, device)
        sharded.choose_backend()
    return sharded


def _bare(policy: Policy) -> Policy:
    """A policy like another, without memory for its weights."""
    bare = Policy(skeleton(policy.model), policy.codec, policy.compute_dtype)
    bare.run_like(policy)
    bare.runs_on, bare.merge_bytes, bare.version = policy.runs_on, policy.merge_bytes, policy.version
    bare.starts_trained = policy.starts_trained
    return bare


def _shard_model(model: Any, mesh: DeviceMesh, handing: Handing) -> None:
    decoder = model.get_decoder()
    for layer in getattr(decoder, "layers", getattr(decoder, "h", ())):
        handing.fill(layer)
        fully_shard(layer, mesh=mesh)
    handing.fill(model)
    # The root too is resharded after its forward: left whole, it would keep weights of before the next update.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    setattr(model, _INSIDE, types.MethodType(lambda _model, work: work(), model))
    register_fsdp_forward_method(model, _INSIDE)


class ShardedPolicy(Policy):
    """See the module; made by :func:`shard_policy`.

    Args:
        policy: Whose model has been sharded; not to be used any more.
        sampler: A whole policy to sample from, if any.
        second: A frozen, sharded model for the reference, if any.
    """

    def __init__(self, policy: Policy, sampler: Policy | None, second: Any | None) -> None:
        self.__dict__.update(policy.__dict__)
        self.sampler: Policy | None = sampler
        self._second = second
        self._synced = self._changes()
        self._rank = dist.get_rank()
        self.sum_over_ranks = _add_up

    @property
    def samples_from(self) -> Policy:
        """As :attr:`Policy.samples_from`: the gathered copy."""
        return self.sampler or self

    @torch.no_grad()
    def choose_backend(self) -> None:
        """Choose how the model is run by a few passes of the divided weights; a collective."""
        getattr(self.base, _INSIDE)(lambda: self.backend.name)
        if self._second is not None:
            self._second.config._attn_implementation = self.base.config._attn_implementation

    def score(self, batch: MicroBatch, temperature: float = 1.0) -> TokenStats:
        """As :meth:`Policy.score`, but a collective: every process calls it.

        Where a log-probability is not finite on one process, all processes get NaN: whoever turns back then does so
        everywhere, and nobody waits for a pass that does not come.
        """

        def statistics() -> tuple[Tensor, Tensor]:  # tensors, for the hooks of the root see no others
            stats = Policy.score(self, batch, temperature)
            return stats.logp, stats.entropy

        stats = TokenStats(*getattr(self.base, _INSIDE)(statistics))
        broken = (~torch.isfinite(stats.logp).all()).to(torch.int32)
        dist.all_reduce(broken, dist.ReduceOp.MAX)
        return TokenStats(stats.logp + torch.nan, stats.entropy) if bool(broken) else stats

    @torch.no_grad()
    def reference_logp(self, batch: MicroBatch, temperature: float = 1.0) -> Tensor:
        """As :meth:`Policy.reference_logp`, but a collective: every process calls it."""
        root = self._reference if isinstance(self._reference, nn.Module) else self.base
        logp: Tensor = getattr(root, _INSIDE)(lambda: Policy.reference_logp(self, batch, temperature))
        return logp

    @torch.no_grad()
    def sync_sampler(self) -> None:
        """As :meth:`Policy.sync_sampler`, but a collective: every process calls it."""
        now = self._changes()
        stale = torch.tensor(int(now != self._synced))
        dist.all_reduce(stale, dist.ReduceOp.MAX)
        if self.sampler is None or not stale:
            return
        for mine, theirs in zip(self.sampler.model.parameters(), self.model.parameters(), strict=True):
            if theirs.requires_grad:
                mine.copy_(full(theirs.detach()))
        self.sampler.version = self.version
        self._synced = now

    def _changes(self) -> list[tuple[int, int]]:
        """How often each trained weight has been written to, by torch's own count: as a whole, and its piece here."""
        return [(parameter._version, local(parameter)._version) for parameter in self.parameters]

    @torch.no_grad()
    def keep_reference(self, *, trained: bool) -> None:
        """See :meth:`Policy.keep_reference`; room for it has been made before the weights were divided."""
        if self.lora:
            trained = trained or self.starts_trained
            if trained:
                self._copy_pieces_of_adapter()
            self._reference = REFERENCE_ADAPTER if trained else ""
            return
        if self._second is None:
            raise RuntimeError("no room was made for a reference before the weights were divided")
        for mine, theirs in zip(self._second.parameters(), self.base.parameters(), strict=True):
            local(mine).copy_(local(theirs))
        self._reference = self._second

    def _copy_pieces_of_adapter(self) -> None:
        named = dict(self.model.named_parameters())
        for name, mine in named.items():
            if f".{REFERENCE_ADAPTER}." in name:
                theirs = named[name.replace(f".{REFERENCE_ADAPTER}.", f".{self.model.active_adapter}.")]
                local(mine).copy_(local(theirs))

    @torch.no_grad()
    def load_reference_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See :meth:`Policy.load_reference_weights`; each process takes its pieces."""
        if self._second is None:
            raise RuntimeError("no room was made for a reference before the weights were divided")
        for name, mine in self._second.state_dict().items():
            local(mine).copy_(piece(weights[name], mine))
        self._reference = self._second

    def reference_weights(self) -> dict[str, Tensor] | None:
        """See :meth:`Policy.reference_weights`; a collective, and only the first process gets the weights."""
        if not isinstance(self._reference, nn.Module):
            return None
        return dict(self._gathered(self._reference.state_dict().items(), {}))

    @torch.no_grad()
    def save(self, folder: Path) -> None:
        """See :meth:`Policy.save`; a collective, and the first process writes."""
        holders = {name: id(p) for name, p in self.model.named_parameters(remove_duplicate=False)}
        named = self.model.state_dict().items()
        if self.lora:  # the base model is where it came from
            own = {name for name, p in self.model.named_parameters() if p.requires_grad}
            named = [(n, t) for n, t in named if n in own or "lora_" in n or f".{REFERENCE_ADAPTER}." in n]
        state = dict(self._gathered(named, holders))
        if self._rank:
            return
        keeps = [self.model.active_adapter] if self.lora else []
        keeps += [REFERENCE_ADAPTER] if self._reference == REFERENCE_ADAPTER else []
        self._write(folder, state_dict=state, **({"selected_adapters": keeps} if self.lora else {}))

    @torch.no_grad()
    def save_adapter(self, folder: Path) -> None:
        """See :meth:`Policy.save_adapter`; a collective, and the first process writes."""
        active = self.model.active_adapter
        own = {name for name, p in self.model.named_parameters() if p.requires_grad}
        named = [(n, t) for n, t in self.model.state_dict().items() if n in own or f".{active}." in n]
        state = dict(self._gathered(named, {}))
        if not self._rank:
            self.model.save_pretrained(
                str(folder), state_dict=state, selected_adapters=[active], save_embedding_layers=False
            )

    def _gathered(self, named: Any, holders: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
        """Yield whole tensors on the CPU, one gathered after the other; on the first process alone.

        Tensors of one holder (tied weights) are one tensor.
        """
        seen: dict[int, Tensor] = {}
        for name, tensor in named:
            holder = holders.get(name, 0)
            if holder in seen:
                whole = seen[holder]
            else:
                whole = full(tensor.detach())
                whole = whole.cpu().contiguous() if not self._rank else whole[:0]
                if holder:
                    seen[holder] = whole
            if not self._rank:
                yield name, whole
