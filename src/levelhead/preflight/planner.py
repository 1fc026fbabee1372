"""Makes the plan of a run: which parts lie in memory in which phase, and how large each is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from levelhead.objective.audit import MAX_ENTRIES
from levelhead.policy import four_bit
from levelhead.policy.allocation import Layout
from levelhead.policy.footprint import Footprints, kv_bytes, tensor_bytes
from levelhead.policy.head import block_shape
from levelhead.policy.policy import Policy
from levelhead.preflight.memory_plan import PREFLIGHT, MemoryPlan, Part, Prompts, Target, divided_parts, divisor, share
from levelhead.recipe import Recipe
from levelhead.recipe.generator import Vllm
from levelhead.recipe.model import Model
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo, Optimizer, Sft
from levelhead.training.prepare import make_objective

RUNTIME = {"cpu": 400 << 20, "cuda": 1 << 30, "mps": 1 << 30}
"""Interpreter and libraries on a CPU (measured by ``bench/plan.py``); on CUDA its context, the workspaces of its
libraries and what lies unused between tensors (an assumption)."""

SHARED_DEMONSTRATIONS = 8
"""Demonstrations whose common beginning is computed once, as in :mod:`levelhead.training.sft`."""


class Planner:
    """Makes plans of a recipe and of changes to it, for one target; passes are computed once each.

    Args:
        target: What is planned for.
        prompts: How long they are taken to be.
        processes: Of the run; the plan is that of one of them.
    """

    def __init__(self, target: Target, prompts: Prompts, processes: int = 1) -> None:
        self.target, self.prompts, self.processes = target, prompts, processes
        self._models: dict[str, Footprints] = {}
        self._passes: dict[tuple[object, ...], int] = {}

    def plan(self, recipe: Recipe, *, compare: bool = False) -> MemoryPlan:
        """Return the plan of a recipe.

        Args:
            recipe: What is planned.
            compare: Also note what activations take with and without gradient checkpointing, which takes seconds.

        Raises:
            InputError: The model's config cannot be had.
        """
        footprints = self._footprints(recipe.model)
        policy = footprints.policy
        self.prompts = self._bounded(recipe, policy.context)
        count = divisor(recipe, self.processes)
        trained, whole = tensor_bytes(policy.parameters), four_bit.weight_bytes(policy.model)
        mine, weights = share(trained, count), share(whole, count)
        stages = [s for s, section in (("sft", recipe.sft), ("update", recipe.grpo)) if section is not None]
        phases = (*stages, "sampling")
        kind = str(policy.base.dtype).removeprefix("torch.")
        parts = [Part("weights", weights, phases, f"four bits, the rest {kind}" if recipe.model.in_four_bits else kind)]
        activations: dict[str, int] | None = {} if compare else None
        if recipe.sft is not None:
            parts += self._sft(recipe, recipe.sft, footprints, mine, activations)
        if recipe.grpo is not None:
            parts += self._grpo(recipe, recipe.grpo, footprints, mine, activations)
        if isinstance(recipe.generator, Vllm):
            parts += self._engine(recipe.generator, phases)
        else:
            parts += self._sampling(recipe, footprints)
        if count > 1:
            parts = divided_parts(recipe, footprints, parts, stages, whole)
        checked = tuple({PREFLIGHT for part in parts if PREFLIGHT in part.phases})
        parts.append(Part("runtime", RUNTIME[self.target.device], (*phases, *checked), "a constant"))
        if recipe.grpo is not None and recipe.grpo.ahead:
            parts = [replace(p, phases=(*p.phases, "update")) if p.phases == ("sampling",) else p for p in parts]
        numel = sum(p.numel() for p in policy.model.parameters())
        changed = sum(p.numel() for p in policy.parameters)
        present = tuple(part for part in parts if part.size)
        return MemoryPlan(
            self.target, footprints.backend, self.prompts, numel, changed, present, activations or {}, self.processes
        )

    def _bounded(self, recipe: Recipe, context: int) -> Prompts:
        """The prompts, no longer than the model's context leaves room for."""
        answer = recipe.grpo.sampling.max_new_tokens if recipe.grpo else recipe.eval.sampling.max_new_tokens
        room = max(1, context - answer)
        if self.prompts.tokens <= room:
            return self.prompts
        return Prompts(room, f"what the context of {context:,} leaves; {self.prompts.source}")

    def _footprints(self, section: Model) -> Footprints:
        plain = section.model_copy(update={"gradient_checkpointing": False})
        key = plain.model_dump_json()
        if key not in self._models:
            self._models[key] = Footprints(plain, self.target.device, self.target.compute)
        return self._models[key]

    def _once(self, footprints: Footprints, call: Callable[[], int], *key: object) -> int:
        whole = (id(footprints), *key)
        if whole not in self._passes:
            self._passes[whole] = call()
        return self._passes[whole]

    def _update(
        self,
        footprints: Footprints,
        layout: Layout,
        model: Model,
        activations: dict[str, int] | None,
        *,
        several: bool,
        again: bool,
    ) -> list[tuple[str, int, str]]:
        """Activations and blocks of logits of a micro-batch; notes, if asked, what either checkpointing takes."""
        backwards = 2 if again else 1

        def taken(checkpointing: bool) -> int:
            return self._once(
                footprints,
                lambda: footprints.update(
                    layout, gradients=several, backwards=backwards, checkpointing=checkpointing
                ),
                layout, several, backwards, checkpointing,
            )  # fmt: skip

        if activations is not None:
            for name, on in (("without checkpointing", False), ("with checkpointing", True)):
                activations[name] = max(activations.get(name, 0), taken(on))
        blocks = block_shape(layout.targets, self.target.device)
        vocabulary = len(footprints.head.weight)
        size = 8 * blocks.rows * blocks.columns + 4 * min(blocks.stored, layout.targets * vocabulary)
        whole = taken(model.gradient_checkpointing)
        size = min(size, whole)
        how = "computed again, layer by layer" if model.gradient_checkpointing else "kept"
        return [
            ("activations", whole - size, f"of a micro-batch of {layout.tokens:,} tokens, {how}"),
            ("logits", size, f"in blocks of {blocks.rows:,} x {min(blocks.columns, vocabulary):,}"),
        ]

    def _sft(
        self, recipe: Recipe, section: Sft, footprints: Footprints, trained: int, activations: dict[str, int] | None
    ) -> list[Part]:
        answer = recipe.grpo.sampling.max_new_tokens if recipe.grpo else recipe.eval.sampling.max_new_tokens
        k = min(SHARED_DEMONSTRATIONS, section.batch_size)
        trunks = share(section.batch_size // k, self.processes)
        layout, several = trees(footprints, 1, self.prompts.tokens + answer, trunks, k, section.tokens_per_microbatch)
        layout = replace(layout, targets=min(layout.targets, _members(layout, section, k, answer)))
        moments, note = _moments(section.optimizer, footprints.policy, trained)
        parts = [Part("gradients (sft)", trained, ("sft",)), Part("optimizer (sft)", moments, ("sft",), note)]
        passes = self._update(footprints, layout, recipe.model, activations, several=several, again=False)
        return parts + [Part(f"{name} (sft)", size, ("sft",), note) for name, size, note in passes]

    def _grpo(
        self, recipe: Recipe, section: Grpo, footprints: Footprints, trained: int, activations: dict[str, int] | None
    ) -> list[Part]:
        tasks, both = len(recipe.tasks), ("update", "sampling")
        most = max(task.weight for task in recipe.tasks) / sum(task.weight for task in recipe.tasks)
        groups = max(1, round(section.batch_size / section.group_size / section.updates_per_batch * most))
        groups = share(groups, self.processes)
        budget = section.sampling.max_new_tokens
        layout, several = trees(
            footprints, self.prompts.tokens, budget, groups, section.group_size, section.tokens_per_microbatch
        )
        several = several or tasks > 1
        apart = section.merge.kind != "sum" or section.merge.monitor_every > 0
        penalised = make_objective(recipe, section)[0].coefficients.needs_reference
        buffers = 1 if not apart else tasks + (section.merge.memory == "full")
        audited = section.audit.first > 0 or section.audit.every > 0
        moments, note = _moments(section.optimizer, footprints.policy, trained)
        notes = f"one for each of {tasks} tasks, and one of the rest" if buffers > 1 else ""
        parts = [
            Part("gradients", buffers * trained, ("update",), notes),
            Part("optimizer", moments, both, note),
            Part(
                "reference",
                _reference(recipe, footprints, trained, divisor(recipe, self.processes), penalised=penalised),
                both,
                "a copy of the weights",
            ),
        ]
        parts += self._copies(recipe, section, trained, tensor_bytes(footprints.policy.parameters))
        if audited:
            terms = tasks * (2 + (penalised and section.kl.where == "loss"))
            audit_entries = terms * min(trained, 4 * MAX_ENTRIES)
            note = f"gradients of {terms} terms in the updates that are audited (audit.first, audit.every)"
            parts.append(Part("audit", audit_entries + (trained if several else 0), ("update",), note))
        passes = self._update(footprints, layout, recipe.model, activations, several=several, again=apart or audited)
        return parts + [Part(name, size, ("update",), note) for name, size, note in passes]

    def _copies(self, recipe: Recipe, section: Grpo, trained: int, whole: int) -> list[Part]:
        """Copies of trained weights that guard and drawing ahead hold; those to go back to lie in host memory.

        Processes that divide the weights hold a share of the former (``trained``), and the latter whole.
        """
        both, here = ("update", "sampling"), self.target.device == "cpu"
        parts = []
        protects = recipe.guard.policy == "protect"
        if protects:
            later = section.updates_per_batch * section.epochs > 1
            count = 1 + later + here
            note = "weights that a step starts from" + (", and those to go back to" if here else "")
            parts.append(Part("guard", count * trained, both, note))
        if section.ahead:
            divided = trained < whole
            # Servers hold one version, and of divided weights the trainer keeps no copy beside them.
            copies = int(not divided) if isinstance(recipe.generator, Vllm) else section.ahead
            who = "the copy that draws" if copies == 1 else f"the {copies} copies that draw"
            note = f"{who} ahead (async: {section.ahead})"
            parts.append(Part("drawing ahead", copies * whole + (protects and here) * trained, both, note))
        return parts

    def _engine(self, engine: Vllm, phases: tuple[str, ...]) -> list[Part]:
        """What a server on the same GPU takes: its share, or what a sleeping one cannot give up."""
        room = self.target.room
        if engine.gpu_share is None or room is None or self.target.device == "cpu":
            return []
        share, note = int(engine.gpu_share * room), f"generator.gpu_share: {engine.gpu_share:g} of {self.target.name}"
        if not engine.sleep:
            return [Part("vLLM server", share, phases, note)]
        trains = tuple(phase for phase in phases if phase != "sampling")
        return [
            Part("vLLM server", share, ("sampling",), note),
            Part("vLLM server, asleep", RUNTIME[self.target.device], trains, "what it cannot give up, a constant"),
        ]

    def _sampling(self, recipe: Recipe, footprints: Footprints) -> list[Part]:
        """The larger one of rollouts and evaluation."""
        draws: list[tuple[int, int, Sampling]] = []
        if recipe.grpo is not None:
            g = recipe.grpo
            mine = share(g.batch_size // g.group_size, self.processes)
            at_once = min(mine, max(1, g.sampling.rows_at_once // g.group_size))
            draws.append((at_once, g.group_size, g.sampling))
        e = recipe.eval
        items = share(max(e.items, e.final_items), self.processes)
        draws.append((min(e.batch_size, e.sampling.rows_at_once, items), 1, e.sampling))
        parts_of_each = [self._draw(footprints, prompts, k, controls) for prompts, k, controls in draws]
        return max(parts_of_each, key=lambda parts: sum(part.size for part in parts))

    def _draw(self, footprints: Footprints, prompts: int, k: int, controls: Sampling) -> list[Part]:
        """Drawing k completions of each of some prompts at once."""
        config, rows = footprints.policy.base.config, prompts * k
        longest, budget = self.prompts.tokens, controls.max_new_tokens
        width = 4 if self.target.compute == torch.float32 else 2
        shared = footprints.backend != "sdpa"
        if shared:
            cache = kv_bytes(config, prompts, longest, width) + kv_bytes(config, rows, budget, width)
        else:
            cache = kv_bytes(config, rows, longest + budget, width)
        vocabulary = len(footprints.head.weight)
        logits = 4 * rows * vocabulary * _logits_held(controls, vocabulary)
        work = _decoding_work(config, rows, longest + budget, width, cache, shared=shared)
        prefill = self._once(
            footprints, lambda: footprints.prefill(prompts, longest, rows), "prefill", prompts, longest, rows
        )
        when = ("sampling",)
        note = f"of {rows} completions of {budget} tokens" + (", a prompt's once" if shared else "")
        return [
            Part("keys and values", cache, when, note),
            Part("logits (sampling)", logits + work + 32 * rows * budget, when, f"{rows} x {vocabulary:,}"),
            Part("reading prompts", max(0, prefill - cache - logits - work), when, "what it takes beyond these"),
            Part("weights (sampling)", footprints.laid_out, when, "laid out anew, an adapter merged"),
        ]


def trees(footprints: Footprints, prompt: int, answer: int, groups: int, k: int, budget: int) -> tuple[Layout, bool]:
    """Return the largest micro-batch of groups, and whether there are several of them.

    Follows :func:`levelhead.policy.packing.pack` for sequences of one length each.

    Args:
        footprints: Whose policy packs.
        prompt: Tokens that the k sequences of a group share.
        answer: Tokens of a completion.
        groups: To pack.
        k: Sequences of a group.
        budget: Tokens that pass through the model at once.
    """
    fresh = max(1, answer - 1)
    if not footprints.policy.shares_prefixes or k == 1:
        rows = max(1, min(groups * k, budget // (prompt + fresh)))
        return Layout(rows, prompt + fresh, False, rows * answer, rows * answer), rows < groups * k
    members = max(1, min(k, (budget - prompt) // fresh))
    parts = -(-k // members)
    length = prompt + members * fresh
    rows = max(1, min(groups * parts, budget // length))
    layout = Layout(rows, length, members > 1, rows * members * answer, rows * (1 + members * fresh))
    return layout, rows < groups * parts


def _moments(section: Optimizer, policy: Policy, trained: int) -> tuple[int, str]:
    """Bytes of an optimizer's moments, and whose they are: two an entry, one of Muon's matrices.

    In 8 bits, 256 entries share a scale, and weights of fewer than 4,096 entries keep 32 (Dettmers et al. 2022).
    """
    size = 2 * trained
    if section.kind == "muon":
        size -= tensor_bytes(policy.matrices)
    elif section.in_eight_bits:
        sizes = (weight.numel() for weight in policy.parameters)
        size = 2 * sum(n + 4 * -(-n // 256) if n >= 4096 else 4 * n for n in sizes)
    return size, f"{section.kind}'s moments"


def _members(layout: Layout, section: Sft, k: int, answer: int) -> int:
    """Completion tokens of a micro-batch of demonstrations, whose prompts are not scored."""
    return max(1, min(section.batch_size, layout.rows * (k if layout.tree else 1)) * answer)


def _reference(recipe: Recipe, footprints: Footprints, trained: int, count: int, *, penalised: bool) -> int:
    """Bytes of the reference: a copy of the weights, or of an adapter that has been trained before, or nothing."""
    if not penalised:
        return 0
    if not footprints.policy.lora:
        return share(tensor_bytes(footprints.policy.model.parameters()), count)
    return trained if recipe.sft is not None else 0


def _logits_held(controls: Sampling, vocabulary: int) -> int:
    """How many (rows, vocabulary) tensors drawing a token holds at once, as :mod:`levelhead.rollout.logits` does."""
    plain = not (
        controls.top_k or controls.top_p < 1 or controls.min_p or controls.no_repeat_ngram or controls.temperature == 0
        or controls.presence_penalty or controls.frequency_penalty or controls.repetition_penalty != 1
    )  # fmt: skip
    padded = vocabulary % 512 != 0
    if plain:
        return 2 + padded
    return 4 if controls.temperature == 0 else 5 + padded


def _decoding_work(config: Any, rows: int, length: int, width: int, cache: int, *, shared: bool) -> int:
    """Bytes that a decoding step takes besides cache and logits: a feed-forward's rows, and attention."""
    inner = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    own = rows * (3 * inner + 4 * int(config.hidden_size)) * width
    if shared:
        return own + 3 * 4 * rows * int(config.num_attention_heads) * length
    return own + cache // max(1, int(config.num_hidden_layers))
