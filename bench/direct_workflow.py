"""Is a workflow better than answering directly, where both may use as many tokens?

python bench/direct_workflow.py MODEL --out FILE
python bench/direct_workflow.py simulator

MODEL, a folder of transformers, runs the operators of the endpoint executor on built-in problems in words.  Each
workflow is held against direct answers to the same problem: as many samples of ``Custom`` as its tokens pay for (at
least one, at most --samples), of which the answer that most agree on counts.  Differences are paired over problems.
With ``simulator``, exact expectations: the best of its candidates within a budget beside the best vote of ``Custom``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from levelhead.contrib.workflow.answers import grade
from levelhead.contrib.workflow.endpoint import EndpointRunner, most_agreed
from levelhead.contrib.workflow.interpret import Job, Outcome
from levelhead.contrib.workflow.language import parse
from levelhead.contrib.workflow.problems import DOMAINS, Problem, generate
from levelhead.contrib.workflow.simulator import candidates, expected
from levelhead.recipe.workflow import EndpointExecutor, SandboxLimits, WeightedReward
from levelhead.tasks.datasets.base import DIFFICULTIES, Domain
from levelhead.tasks.sandbox import Bench

DIRECT = "Custom"
WORKFLOWS = (
    "AnswerGenerate",
    "Custom -> Format",
    "Custom -> Review ? Revise : done",
    "[AnswerGenerate, AnswerGenerate, AnswerGenerate] -> ScEnsemble",
)
TOKENS = 80
"""Most tokens of a call."""
BUDGETS = (330, 700, 1050, 1600)
"""Tokens of the simulator; the smallest pays for one direct answer."""


class Model:
    """A chat endpoint in this process: calls that wait are sampled together.

    Args:
        folder: Of transformers.
        width: Most calls in a batch.
    """

    def __init__(self, folder: str, width: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._width = width
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[tuple[str, int, int]]]] = []
        self.seconds = 0.0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a call in the form of chat completions."""
        end: asyncio.Future[tuple[str, int, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((json.loads(request.content), end))
        text, read, written = await end
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": read, "completion_tokens": written}
        return httpx2.Response(200, json={"choices": [choice], "usage": usage})

    async def serve(self) -> None:
        """Sample what waits, as many calls of one temperature at once as the width allows, until cancelled."""
        while True:
            await asyncio.sleep(0.02)
            if not self._waiting:
                continue
            temperature = self._waiting[0][0]["temperature"]
            batch = [one for one in self._waiting if one[0]["temperature"] == temperature][: self._width]
            self._waiting = [one for one in self._waiting if one not in batch]
            bodies = [body for body, _ in batch]
            for (_, end), reply in zip(batch, await asyncio.to_thread(self._sample, bodies, temperature), strict=True):
                end.set_result(reply)

    @torch.inference_mode()
    def _sample(self, bodies: Sequence[dict[str, Any]], temperature: float) -> list[tuple[str, int, int]]:
        began = time.monotonic()
        texts = [
            self._tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
            for body in bodies
        ]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        how = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        ends = self._tokenizer.eos_token_id
        ids = self._model.generate(**inputs, **how, max_new_tokens=TOKENS, pad_token_id=ends)
        replies = []
        for prompt, row in zip(inputs.attention_mask.sum(1).tolist(), ids[:, inputs.input_ids.shape[1] :], strict=True):
            written = min(int((row != ends).sum()) + 1, TOKENS)
            replies.append((str(self._tokenizer.decode(row, skip_special_tokens=True)), int(prompt), written))
        self.seconds += time.monotonic() - began
        return replies


def direct_within(budget: int, samples: Sequence[Outcome]) -> list[Outcome]:
    """As many samples as the tokens pay for, at least one."""
    taken, used = [samples[0]], samples[0].tokens
    for one in samples[1:]:
        if used + one.tokens > budget:
            break
        taken, used = [*taken, one], used + one.tokens
    return taken


def simulated() -> None:
    """Print, by domain and budget, the best direct vote and the best workflow: tokens and share right."""
    reward = WeightedReward(kind="weighted")

    def worth(text: str, domain: Domain) -> tuple[float, float, str]:
        ends = [expected(parse(text), domain, difficulty, reward) for difficulty in DIFFICULTIES]
        return statistics.fmean(end.right for end in ends), statistics.fmean(end.tokens for end in ends), text

    votes = [DIRECT, *(f"[{', '.join([DIRECT] * n)}] -> ScEnsemble" for n in range(2, 7))]
    for domain in DOMAINS:
        sides = [[worth(text, domain) for text in dict.fromkeys(texts)] for texts in (votes, candidates())]
        for budget in BUDGETS:
            for right, tokens, text in (max(one for one in side if one[1] <= budget) for side in sides):
                print(f"{domain:5} {budget:5} {right:.2f} {tokens:5.0f}  {text}")


async def voted(problem: Problem, taken: Sequence[Outcome], bench: Bench) -> float:
    """Whether the answer that most samples agree on is right: 1 or 0."""
    level, _ = await grade(problem, most_agreed([one.answer for one in taken], problem.domain), bench)
    return float(level == 1.0)


async def measure(model: Model, problems: Sequence[Problem], samples: int) -> list[dict[str, Any]]:
    """A row a domain and workflow."""
    section = EndpointExecutor(
        kind="endpoint", base_url="http://model.test/v1", model="m", max_tokens=TOKENS, concurrency=256,
        timeout_s=3600, patience_s=3600,
    )  # fmt: skip
    sandbox = SandboxLimits()
    runner, bench = EndpointRunner(section, sandbox, httpx2.MockTransport(model)), Bench(sandbox)
    server = asyncio.create_task(model.serve())
    direct = [Job(parse(DIRECT), DIRECT, problem, n) for problem in problems for n in range(samples)]
    ended = await runner.execute(direct)
    pools = {p.id: ended[i * samples : (i + 1) * samples] for i, p in enumerate(problems)}
    rows: list[dict[str, Any]] = []
    for text in WORKFLOWS:
        outcomes = await runner.execute([Job(parse(text), text, problem) for problem in problems])
        for domain in dict.fromkeys(problem.domain for problem in problems):
            mine = [(p, o) for p, o in zip(problems, outcomes, strict=True) if p.domain == domain]
            takes = [direct_within(o.tokens, pools[p.id]) for p, o in mine]
            right = [float(o.level == 1.0) for _, o in mine]
            beside = [await voted(p, taken, bench) for (p, _), taken in zip(mine, takes, strict=True)]
            differences = [a - b for a, b in zip(right, beside, strict=True)]
            rows.append({
                "domain": domain, "workflow": text, "problems": len(mine), "right": statistics.fmean(right),
                "tokens": statistics.fmean(o.tokens for _, o in mine), "direct": statistics.fmean(beside),
                "direct_tokens": statistics.fmean(sum(one.tokens for one in taken) for taken in takes),
                "direct_samples": statistics.fmean(map(len, takes)), "difference": statistics.fmean(differences),
                "error": statistics.stdev(differences) / math.sqrt(len(differences)),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    server.cancel()
    for domain in dict.fromkeys(problem.domain for problem in problems):
        single = [float(one.level == 1.0) for p in problems if p.domain == domain for one in pools[p.id]]
        rows.append({"domain": domain, "workflow": DIRECT, "right": statistics.fmean(single), "samples": len(single)})
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--problems", type=int, default=24, help="of each domain")
    parser.add_argument("--samples", type=int, default=6, help="direct samples a problem")
    parser.add_argument("--width", type=int, default=32, help="calls in a batch")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.model == "simulator":
        simulated()
        return
    torch.manual_seed(0)
    model = Model(arguments.model, arguments.width)
    problems = [
        [one for one in generate(3000) if one.domain == domain][: arguments.problems] for domain in ("math", "qa")
    ]
    rows = asyncio.run(measure(model, [one for side in problems for one in side], arguments.samples))
    print(f"{model.seconds:.0f} s of sampling")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
