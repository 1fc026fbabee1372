"""What the preflight says of the recipes whose model comes from the hub, on small random models of the same kind.

    python bench/hub_recipes.py --data DATA [--seeds 3] [NAME ...]

Each recipe is taken as it ships: its tasks, stages, precision and adapter.  Exchanged are the weights (a random model
of the same architecture, two layers of 64), the tokenizer (the family's template and stop tokens, over a small
vocabulary), the paths of the data (``DATA`` holds bbq, halueval and gsm8k) and the endpoint, which a server on this
machine plays: a judge that tells right from wrong, and an operator that knows most answers.

A line a recipe and seed.  Random weights earn three warnings that trained ones would not: they do not end their
answers, they solve nothing, and a constant answer beats them.  The exit code is 1 if a check fails, or warns of
anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "text")]

import torch  # noqa: E402
from families import FAMILIES, tokenizer_of  # noqa: E402
from transformers import (  # noqa: E402
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from judged_preflight import sound  # noqa: E402
from levelhead.contrib.workflow.problems import generate  # noqa: E402
from levelhead.preflight import preflight  # noqa: E402
from levelhead.recipe import load  # noqa: E402
from levelhead.training.prepare import prepare  # noqa: E402

RECIPES = {
    "dual-llama3-8b": "llama3",
    "browser-lfm2-350m": "lfm2",
    "function-qwen2.5-0.5b": "qwen25",
    "workflow-qwen2.5-7b": "qwen25",
}
OF_RANDOM_WEIGHTS = ("sampling/max-length", "rewards/contrast/", "rewards/constant/")
"""Warnings that say something true of weights that nobody has trained."""
PROBLEMS = 600
"""Problems of the workflow recipe, whose answers the operator knows."""
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "max_position_embeddings": 8192}  # fmt: skip


class Endpoint(BaseHTTPRequestHandler):
    """A judge that grades perfect answers 9, others 2 and empty ones 0, and an operator that knows the answers."""

    answers: ClassVar[dict[str, str]] = {}
    """By question."""

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        reply = next((f"VERDICT: CORRECT\n#### {a}" for q, a in self.answers.items() if q in text), "VERDICT: CORRECT")
        if "for comparison:\n" in text:
            perfect = text.split("for comparison:\n")[1].split("\n\n[answer")[0]
            answer = text.split("[answer ")[1].split("]\n", 1)[1].rsplit("\n[end of answer", 1)[0]
            reply = sound(perfect, answer)
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        body = json.dumps({"choices": [{"message": {"content": reply}}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def endpoint() -> Iterator[str]:
    """Serve on a free port; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def model_of(family: str, seed: int, folder: Path) -> Path:
    """Save a small random model of a family, with its tokenizer."""
    tokenizer = tokenizer_of(family)
    eos, bos = tokenizer.eos_token_id, tokenizer.bos_token_id
    ends = {"vocab_size": len(tokenizer), "eos_token_id": eos, "bos_token_id": bos}
    torch.manual_seed(seed)
    model: PreTrainedModel
    if family == "llama3":
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, **ends))
    elif family == "lfm2":
        layers = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
        model = Lfm2ForCausalLM(Lfm2Config(**SHAPE, **ends, **layers))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, **ends, tie_word_embeddings=True))
    stops = [tokenizer.convert_tokens_to_ids(token) for token in FAMILIES[family].generation_eos]
    model.generation_config.eos_token_id = stops or eos
    path = folder / f"{family}-{seed}"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def changes(name: str, model: Path, data: Path, url: str, seed: int, folder: Path) -> list[str]:
    """Overrides that put everything on this machine."""
    given = [f"model.name={model}", f"seed={seed}"]
    if name == "dual-llama3-8b":
        given += [f"tasks.0.path={data / 'bbq'}", f"tasks.1.path={data / 'halueval'}"]
        for i in (0, 1):
            given += [f"tasks.{i}.judge.base_url={url}", f"tasks.{i}.judge.cache={folder / 'judge.sqlite'}"]
    if name == "function-qwen2.5-0.5b":
        rewards = [f"{ROOT / 'recipes' / 'rewards_gsm8k.py'}:{reward}" for reward in ("accuracy", "brevity")]
        given += [f"tasks.0.path={data / 'gsm8k' / 'train.jsonl'}", f"tasks.0.rewards={json.dumps(rewards)}"]
    if name == "workflow-qwen2.5-7b":
        given += [f"tasks.0.executor.base_url={url}", f"tasks.0.executor.cache={folder / 'replies.sqlite'}"]
        given += [f"tasks.0.items={PROBLEMS}"]
        Endpoint.answers = {
            problem.question: problem.answers[0][0] for problem in generate(PROBLEMS) if problem.answers
        }
    return given


def rows(names: Sequence[str], seeds: int, data: Path) -> Iterator[dict[str, object]]:
    """Check recipes; yields what is said of each."""
    with tempfile.TemporaryDirectory() as temporary, endpoint() as url:
        folder = Path(temporary)
        for name in names:
            for seed in range(seeds):
                start = time.perf_counter()
                model = model_of(RECIPES[name], seed, folder)
                own = folder / f"{name}-{seed}"
                own.mkdir()
                recipe = load(ROOT / "recipes" / f"{name}.yaml", changes(name, model, data, url, seed, own))
                report = preflight(prepare(recipe))
                told = {check.name: check for check in report.checks if check.status in ("warn", "fail")}
                true = {n for n, c in told.items() if c.status == "warn" and n.startswith(OF_RANDOM_WEIGHTS)}
                yield {
                    "recipe": name,
                    "seed": seed,
                    "passed": len(report.checks) - len(told),
                    "true_of_random_weights": sorted(true),
                    "told": {n: f"{c.status}: {c.message}" for n, c in told.items() if n not in true},
                    "seconds": round(time.perf_counter() - start, 1),
                }


def main() -> int:
    """Print a line a recipe and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *RECIPES], default=[])
    parser.add_argument("--data", type=Path, required=True, help="folder with bbq, halueval and gsm8k")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    sound_so_far = True
    for row in rows(options.names or list(RECIPES), options.seeds, options.data.resolve()):
        print(json.dumps(row), flush=True)
        sound_so_far &= not row["told"]
    return 0 if sound_so_far else 1


if __name__ == "__main__":
    sys.exit(main())
