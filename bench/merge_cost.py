"""What merging and the audit cost against ``sum``: time and peak memory of one update, each mode in its own process.

    python bench/merge_cost.py [--tasks 2] [--width 384] [--layers 6] [--repeat 5]

Prints a Markdown table.  Seconds are CPU time on one thread; the forward pass, which the backward passes share, is
part of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

from levelhead.objective import losses
from levelhead.objective.aggregation import ConflictMonitor, GradientMerger
from levelhead.objective.audit import Auditor
from levelhead.objective.terms import Term

MODES = ("forward only", "sum", "sum, monitored", "cagrad", "upgrad", "cagrad, memory low", "sum, audited")


class Policy(nn.Module):
    """A causal transformer of a few million parameters."""

    def __init__(self, width: int, layers: int, vocab: int = 4096) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        block = nn.TransformerEncoderLayer(width, 6, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.embed(tokens), mask=mask, is_causal=True)).log_softmax(-1)


def terms(policy: Policy, tokens: Tensor, tasks: int) -> list[Term]:
    """Policy, KL and entropy term of each task."""
    every = policy(tokens[:, :-1])
    logp = every.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    mask, advantages = torch.ones_like(logp), torch.linspace(-1, 1, len(logp))
    result = losses.policy_loss("ppo_clip", logp, logp.detach() + 0.01, advantages, mask)
    made = []
    for index in range(tasks):
        rows = torch.arange(len(logp)) % tasks == index
        made.append(Term("policy", result.surrogate_nt[rows].mean(), "maximize", task=str(index)))
        made.append(Term("kl", (logp[rows] + 8).square().mean() / 2, "minimize", 0.01, str(index)))
        entropy = -(every[rows].exp() * every[rows]).sum(-1).mean()
        made.append(Term("entropy", entropy, "maximize", 0.001, str(index)))
    return made


def measure(mode: str, options: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = Policy(options.width, options.layers)
    tokens = torch.randint(4096, (16, 65))
    params = list(policy.parameters())
    kind, _, extra = mode.partition(", ")
    merger = GradientMerger(
        params,
        "sum" if kind == "forward only" else kind,
        memory="low" if "low" in extra else "full",
        monitor=ConflictMonitor(every=1) if extra == "monitored" else None,
    )
    seconds = []
    for _ in range(options.repeat + 1):
        start = time.process_time()
        made = terms(policy, tokens, options.tasks)
        if mode != "forward only":
            auditor = Auditor(params) if extra == "audited" else None
            if auditor is not None:
                auditor.add(made)
            merger.add(made)
            merger.finish()
            if auditor is not None:
                auditor.finish()
        del made
        seconds.append(time.process_time() - start)
    size = sum(p.numel() * p.element_size() for p in params)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": min(seconds[1:]), "peak": peak, "gradient": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode:
        print(json.dumps(measure(options.mode, options)))
        return
    results = {}
    for mode in MODES:
        call = [sys.executable, __file__, *sys.argv[1:], "--mode", mode]
        results[mode] = json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    base = results["sum"]
    print(f"{options.tasks} tasks, one gradient is {base['gradient'] / 2**20:.0f} MiB")
    print("| mode | seconds | against sum | peak memory beyond sum, in gradients |\n|---|---|---|---|")
    for mode, row in results.items():
        extra = (row["peak"] - base["peak"]) / base["gradient"]
        print(f"| {mode} | {row['seconds']:.2f} | {row['seconds'] / base['seconds']:.2f} | {extra:+.1f} |")


if __name__ == "__main__":
    main()
