"""A small server that speaks vLLM's routes over a policy of our own, and can be told to go wrong.

It holds weights of its own (read from a folder, as a server would), an output embedding apart from the tied input
embedding, adapters by name, and a prefix cache whose entries go stale unless it is reset.  Draws take their random
numbers from :attr:`FakeEngine.uniforms` where a test knows them, so that a local run draws the same tokens.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlparse

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from levelhead.recipe.sampling import Sampling
from levelhead.rollout.logits import LogitsPipeline

BLOCK = 16
"""Tokens of a block of the prefix cache."""
CONTROLS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")


class HttpError(Exception):
    def __init__(self, status: int, body: Any) -> None:
        self.status, self.body = status, body


class FakeEngine:
    """One server, on a free port of this machine.

    Args:
        folder: Of the model that it begins with, in Hugging Face format.
        faults: What goes wrong: ``keeps_cache``, ``keeps_head``, ``breaks_off``, ``loses_half``, ``ignores``,
            ``hangs``, ``slow``, ``no_adapters``, ``old`` (no ``/inference/v1/generate``).
    """

    def __init__(self, folder: Path, *faults: str, name: str = "policy", dtype: torch.dtype = torch.float32) -> None:
        self.folder, self.name, self.faults, self.dtype = folder, name, set(faults), dtype
        self.uniforms: Callable[[int, int], Any] = lambda seed, n: np.random.default_rng(seed).random(n)
        self.calls: list[str] = []
        self.served = 0
        self.dies_after: int | None = None
        self.faults_at: dict[int, str] = {}
        """Faults that begin at an update of the weights, counted from 1."""
        self.updates = 0
        self.held = threading.Event()
        self.group: dict[str, Any] = {}
        self.wire: list[tuple[str, Tensor]] = []
        """What a broadcast brings."""
        self._lock = threading.Lock()
        self._free = threading.Condition()
        self._paused, self._frozen, self._under_way = False, False, 0
        self._begin()
        self._start(0)

    def _begin(self) -> None:
        """Load the model, as a server does that is started."""
        self.version = "default"
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype).eval()
        self.head = self.model.get_output_embeddings().weight.detach().clone()
        self.adapters: dict[str, Any] = {}
        self.cache: dict[tuple[Any, ...], Any] = {}
        self._updating = False
        self.asleep = False

    def _start(self, port: int) -> None:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def log_message(self, *_: Any) -> None:
                pass

            def _answer(self, method: str) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                status, body = engine.answer(method, self.path, json.loads(raw) if raw else {})
                if status is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass

        self._http = Http(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.alive = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.held.set()
        if self.alive:
            self.kill()

    def kill(self) -> None:
        """End as a process that is killed: nothing is answered any more."""
        self.alive = False
        self._http.shutdown()
        self._http.server_close()

    def restart(self) -> None:
        """Begin anew in no time, with the weights of the beginning."""
        with self._lock:
            self._begin()

    def come_back(self) -> None:
        """Begin anew at the same address after :meth:`kill`."""
        port = int(self.url.rpartition(":")[2])
        self._begin()
        self._start(port)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int | None, Any]:
        url = urlparse(path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.calls.append(url.path)
        route = getattr(self, "_" + url.path.strip("/").replace("/", "_").replace("-", "_"), None)
        if route is None or not self.alive:
            return (404, {"detail": "Not Found"}) if self.alive else (None, None)
        try:
            with torch.no_grad():
                result = route(body, query)
            return (200, result) if self.alive else (None, None)
        except HttpError as error:
            return error.status, error.body
        except Exception as error:  # a fault of this file's own
            return 500, {"error": {"message": f"{type(error).__name__}: {error}"}}

    def _health(self, *_: Any) -> Any:
        return {}

    def _weight_info(self, *_: Any) -> Any:
        return {"weight_version": self.version}

    def _v1_models(self, *_: Any) -> Any:
        return {"data": [{"id": name} for name in (self.name, *self.adapters)]}

    def _pause(self, _: Any, query: dict[str, str]) -> Any:
        with self._free:
            self._paused, self._frozen = True, query["mode"] == "keep"
            if query["mode"] == "wait":
                self._free.wait_for(lambda: self._under_way == 0, timeout=30)
        if "keeps_cache" not in self.faults:
            self.cache.clear()
        return {"status": "paused"}

    def _resume(self, *_: Any) -> Any:
        with self._free:
            self._paused = self._frozen = False
            self._free.notify_all()
        return {"status": "resumed"}

    def _start_weight_update(self, *_: Any) -> Any:
        if self._updating:
            raise HttpError(500, {"error": {"message": "an update is under way"}})
        self._updating = True
        return {}

    def _update_weights(self, body: dict[str, Any], _: Any) -> Any:
        self.updates += 1
        self.faults |= {self.faults_at[self.updates]} if self.updates in self.faults_at else set()
        if "hangs" in self.faults:
            self.held.wait(60)
            raise HttpError(500, {})
        paths = body["update_info"].get("paths")
        weights = self.wire if paths is None else [item for path in paths for item in load_file(path).items()]
        if "breaks_off" in self.faults:
            self._load(weights[: len(weights) // 2])
            raise HttpError(500, {"error": {"message": "EngineCore encountered an issue"}})
        if "ignores" in self.faults:
            return {}
        if "loses_half" in self.faults:
            self.faults.discard("loses_half")
            weights = weights[: len(weights) // 2]
        with self._lock:
            self._load(weights)
        return {}

    def _load(self, weights: list[tuple[str, Tensor]]) -> None:
        own = dict(self.model.named_parameters())
        for name, weight in weights:
            if name == "lm_head.weight":
                if "keeps_head" not in self.faults:
                    self.head.copy_(weight)
            else:
                own[name].copy_(weight)

    def _get_world_size(self, *_: Any) -> Any:
        return {"world_size": 2}

    def _init_weight_transfer_engine(self, body: dict[str, Any], _: Any) -> Any:
        self.group = body["init_info"]
        return {}

    def _finish_weight_update(self, body: dict[str, Any], _: Any) -> Any:
        self._updating, self.version = False, body["weight_version"]
        return {}

    def _reset_prefix_cache(self, *_: Any) -> Any:
        if "keeps_cache" not in self.faults:
            self.cache.clear()
        return {}

    def _sleep(self, *_: Any) -> Any:
        self.asleep = True
        self.cache.clear()
        return {}

    def _wake_up(self, *_: Any) -> Any:
        self.asleep = False
        return {}

    def _v1_load_lora_adapter(self, body: dict[str, Any], _: Any) -> Any:
        name = body["lora_name"]
        if "no_adapters" in self.faults:
            raise HttpError(404, {"detail": "Not Found"})
        if name in self.adapters:
            raise HttpError(400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}})
        fresh = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        self.adapters[name] = PeftModel.from_pretrained(fresh, body["lora_path"]).eval()
        return {}

    def _v1_unload_lora_adapter(self, body: dict[str, Any], _: Any) -> Any:
        self.adapters.pop(body["lora_name"], None)
        return {}

    def _inference_v1_generate(self, body: dict[str, Any], _: Any) -> Any:
        if "old" in self.faults:
            raise HttpError(404, {"detail": "Not Found"})
        if "token_ids" not in body:
            raise HttpError(422, {"detail": "token_ids"})
        ids, logprobs, spans, finish = self._complete(body["model"], body["token_ids"], body["sampling_params"])
        content = [{"token_id": i, "logprob": value} for i, value in zip(ids, logprobs, strict=True)]
        return {
            "choices": [
                {
                    "token_ids": ids, "logprobs": {"content": content}, "weight_versions": spans,
                    "finish_reason": finish,
                }
            ]
        }  # fmt: skip

    def _v1_completions(self, body: dict[str, Any], _: Any) -> Any:
        ids, logprobs, _, finish = self._complete(body["model"], body["prompt"], body)
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": finish}]}

    def _complete(
        self, model: str, prompt: list[int], params: dict[str, Any]
    ) -> tuple[list[int], list[float], list[dict[str, Any]], str]:
        if model != self.name and model not in self.adapters:
            raise HttpError(404, {"error": {"message": f"The model `{model}` does not exist."}})
        if self.asleep:
            raise HttpError(500, {"error": {"message": "asleep"}})
        self.served += 1
        if self.dies_after is not None and self.served > self.dies_after:
            self.dies_after = None
            self.kill()
        with self._free:
            self._free.wait_for(lambda: not self._paused, timeout=30)
            self._under_way += 1
        try:
            return self._draw(model, prompt, params)
        finally:
            with self._free:
                self._under_way -= 1
                self._free.notify_all()

    def _draw(
        self, model: str, prompt: list[int], params: dict[str, Any]
    ) -> tuple[list[int], list[float], list[dict[str, Any]], str]:
        budget, stops = params["max_tokens"], params["stop_token_ids"]
        controls = Sampling(
            max_new_tokens=max(2, budget),
            min_new_tokens=params["min_tokens"],
            **{key: params[key] for key in CONTROLS},
        )
        uniforms = self.uniforms(params["seed"], budget)
        ids: list[int] = []
        logprobs: list[float] = []
        spans: list[dict[str, Any]] = []
        with self._lock:
            logits, past = self._read(model, prompt)
        pipeline = LogitsPipeline(controls, stops, logits.shape[-1])
        for position in range(budget):
            drawn = pipeline.draw(logits, torch.tensor([ids]).long(), position, torch.tensor([uniforms[position]]))
            ids.append(int(drawn.tokens_b))
            logprobs.append(float(drawn.behaviour_b))
            if not spans or spans[-1]["version"] != self.version:
                spans.append({"version": self.version, "start": position, "end": position})
            spans[-1]["end"] = position + 1
            if ids[-1] in stops or position + 1 == budget:
                break
            if "slow" in self.faults:
                time.sleep(0.01)
            with self._free:
                self._free.wait_for(lambda: not self._frozen, timeout=30)
            with self._lock:
                if self.version == spans[-1]["version"]:
                    logits = self._forward(model, [ids[-1]], past)
                else:  # what was read by older weights is read again
                    logits, past = self._read(model, [*prompt, *ids])
        return ids, logprobs, spans, "stop" if ids[-1] in stops else "length"

    def _read(self, model: str, prompt: list[int]) -> tuple[Tensor, Any]:
        """Read a prompt, from what is cached of its beginning on."""
        blocks = (len(prompt) - 1) // BLOCK
        for count in range(blocks, 0, -1):
            key = (model, *prompt[: count * BLOCK])
            if key in self.cache:
                past = copy.deepcopy(self.cache[key])
                return self._forward(model, prompt[count * BLOCK :], past), past
        past = DynamicCache()
        logits = self._forward(model, prompt, past)
        if blocks:
            stored = copy.deepcopy(past)
            stored.crop(blocks * BLOCK - len(prompt))
            self.cache[(model, *prompt[: blocks * BLOCK])] = stored
        return logits, past

    def _forward(self, model: str, ids: list[int], past: Any) -> Tensor:
        read = torch.tensor([ids])
        if model != self.name:
            return self.adapters[model](input_ids=read, past_key_values=past, use_cache=True).logits[:, -1]
        hidden = self.model.model(input_ids=read, past_key_values=past, use_cache=True).last_hidden_state
        return (hidden[:, -1] @ self.head.T).float()
