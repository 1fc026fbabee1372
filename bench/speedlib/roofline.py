"""The work that a step cannot avoid, and the rates at which this machine multiplies matrices and reads memory."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import torch

from speedlib.workloads import Workload


def unavoidable(w: Workload) -> dict[str, float]:
    """Floating-point operations of one step when nothing is computed twice, by part.

    A multiplication and an addition count as two.  Tokens of a prompt count once a group.  In training, a token whose
    loss is never taken (a prompt's, but for its last) needs no output logits and, in the last layer, only its key and
    value.  The backward pass takes twice the forward's, but only once (for activations) where weights are frozen; a
    recomputation of logits in blocks is not counted: it can be avoided, at the price of memory.
    """
    heads, kv, width, inner = shape(w)
    kv_part = 2 * 2 * w.hidden * kv * width  # keys and values of one token in one layer
    rest = 2 * w.hidden * heads * width * 2 + 2 * 3 * w.hidden * inner  # queries, output, feed-forward
    head = 2 * w.hidden * w.vocab
    live = w.groups - round(w.dead * w.groups) if not w.kl else w.groups

    def layers(prompt_tokens: float, answer_tokens: float) -> float:
        every = prompt_tokens + answer_tokens
        full = (w.layers - 1) * every * (kv_part + rest)
        return full + every * kv_part + answer_tokens * rest

    def attention(groups: int) -> float:
        answer = w.k * (w.answer * w.prompt + w.answer**2 / 2)
        prompt = w.prompt**2 / 2
        per_pair = 4 * heads * width
        return groups * per_pair * ((w.layers - 1) * (prompt + answer) + answer)

    def forward(groups: int) -> float:
        answers = groups * w.k * w.answer
        return layers(groups * w.prompt, answers) + attention(groups) + answers * head

    sampling = forward(w.groups)
    backward = (1.0 if w.lora else 2.0) * forward(live)
    training = forward(live) + backward
    if w.kl:
        training += forward(w.groups)
    return {"sampling": sampling, "training": training}


def shape(w: Workload) -> tuple[int, int, int, int]:
    """Attention heads, heads of keys and values, width of a head, width of the feed-forward layer."""
    if not w.config:
        return w.hidden // 64, w.hidden // 128, 64, 4 * w.hidden
    heads = w.config["num_attention_heads"]
    width = w.config.get("head_dim") or w.hidden // heads
    return heads, w.config.get("num_key_value_heads", heads), width, w.config["intermediate_size"]


def read_bytes(w: Workload) -> float:
    """Bytes that sampling one step must read: every weight for each token of an answer, and the keys and values so far.

    Rows decode together, and look at one copy of their prompt's keys and values.
    """
    heads, kv, width, inner = shape(w)
    layer = w.hidden * width * (2 * heads + 2 * kv) + 3 * w.hidden * inner
    weights = w.layers * layer + w.hidden * w.vocab
    cache = 2 * w.layers * kv * width
    pairs = w.groups * w.prompt * w.answer + w.rows * w.answer**2 / 2
    return float((weights * w.answer + cache * pairs) * getattr(torch, w.dtype).itemsize)


def matmul_rate(threads: int, w: Workload, seconds: float = 1.0) -> float:
    """Best measured rate of a plain matrix product of a workload's shapes, in 1e9 operations a processor second.

    All tokens of a step by the feed-forward layer's weights, in the workload's precision; 1024 by 1024 for workloads of
    random weights.  Processor seconds count every thread: what others do on the machine does not lower the rate.
    """
    torch.set_num_threads(threads)
    rows, columns, inner = (w.groups * w.prompt + w.drawn, shape(w)[3], w.hidden) if w.weights else (1024, 1024, 1024)
    dtype = getattr(torch, w.dtype)
    a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
    best, end = 0.0, perf_counter() + seconds
    while perf_counter() < end:
        start = process_time()
        torch.mm(a, b)
        best = max(best, 2 * rows * inner * columns / (process_time() - start))
    return best / 1e9


def memory_rate(threads: int, size: int = 2**28, seconds: float = 1.0) -> float:
    """Best measured rate of reading memory, in 1e9 bytes a second of wall clock: the sum of a vector."""
    torch.set_num_threads(threads)
    vector = torch.ones(size // 4)
    best, end = 0.0, perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        vector.sum()
        best = max(best, size / (perf_counter() - start))
    return best / 1e9


def report(results: dict[str, Any]) -> str:
    """What limits each side, in processor seconds: its share of the multiply rate and, in sampling, of the memory's.

    The second is missing where it was not measured, in files of earlier versions.
    """
    head = ["workload", "side", "unavoidable, training", "rate of a plain product", "share reached"]
    head += ["unavoidable, sampling", "share reached", "read while sampling", "share of the memory's rate"]
    lines = ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, result in results.items():
        work = result["roofline"]
        rate = work["matmul_gflops"]
        for side, summary in result["summary"].items():
            training, sampling = (summary[f"{part}_cpu"]["median"] for part in ("backward", "sampling"))
            cells = [f"{work['training'] / 1e9:,.0f} GFLOP", f"{rate:,.0f} GFLOP/s"]
            cells += [f"{work['training'] / 1e9 / rate / training:.0%}", f"{work['sampling'] / 1e9:,.0f} GFLOP"]
            cells.append(f"{work['sampling'] / 1e9 / rate / sampling:.0%}")
            if "memory_gb" in work:
                cells += [f"{work['sampling_bytes'] / 1e9:.1f} GB at {work['memory_gb']:.1f} GB/s"]
                cells += [f"{work['sampling_bytes'] / 1e9 / work['memory_gb'] / sampling:.0%}"]
            lines.append(f"| {name} | {side} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits(w: Workload, threads: int) -> dict[str, float]:
    """What a step of a workload cannot avoid, and the rates of this machine that it is held against."""
    rates = {"matmul_gflops": matmul_rate(threads, w), "memory_gb": memory_rate(threads)}
    return unavoidable(w) | {"sampling_bytes": read_bytes(w)} | rates
