"""The floating-point work that a step cannot avoid, and the rate at which this machine multiplies matrices."""

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
    heads, kv = w.hidden // 64, w.hidden // 128
    kv_part = 2 * 2 * w.hidden * kv * 64  # keys and values of one token in one layer
    rest = 2 * w.hidden * heads * 64 * 2 + 2 * 3 * w.hidden * 4 * w.hidden  # queries, output, feed-forward
    head = 2 * w.hidden * w.vocab
    live = w.groups - round(w.dead * w.groups) if not w.kl else w.groups

    def layers(prompt_tokens: float, answer_tokens: float) -> float:
        every = prompt_tokens + answer_tokens
        full = (w.layers - 1) * every * (kv_part + rest)
        return full + every * kv_part + answer_tokens * rest

    def attention(groups: int) -> float:
        answer = w.k * (w.answer * w.prompt + w.answer**2 / 2)
        prompt = w.prompt**2 / 2
        per_pair = 4 * heads * 64
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


def matmul_rate(threads: int, size: int = 1024, seconds: float = 1.0) -> float:
    """Best measured rate of a float32 matrix product, in 1e9 operations a processor second.

    Processor seconds count every thread, so that what others do on the machine does not lower the rate.
    """
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best, end = 0.0, perf_counter() + seconds
    while perf_counter() < end:
        start = process_time()
        torch.mm(a, b)
        best = max(best, 2 * size**3 / (process_time() - start))
    return best / 1e9


def report(results: dict[str, Any], gflops: float) -> str:
    """Share of the roofline that each side's training and sampling reach, in processor seconds."""
    lines = ["", f"float32 matrix products here: {gflops:.0f} GFLOP a processor second at best", "",
             "| workload | side | unavoidable, training | share reached | unavoidable, sampling | share reached |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name, result in results.items():
        work = result["roofline"]
        for side, summary in result["summary"].items():
            cells = []
            for part, seconds in (("training", "backward_cpu"), ("sampling", "sampling_cpu")):
                share = work[part] / 1e9 / gflops / summary[seconds]["median"]
                cells.append(f"{work[part] / 1e9:.0f} GFLOP | {100 * share:.0f}%")
            lines.append(f"| {name} | {side} | {' | '.join(cells)} |")
    return "\n".join(lines)
