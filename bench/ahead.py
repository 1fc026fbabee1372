"""What drawing ahead (``grpo.async: 0, 1, 2``) buys: seconds of a step, the settings in turn.

python bench/ahead.py                              the judges and the task that never waits
python bench/ahead.py --workloads browser          MiniWoB++ pages in a real Chromium (needs levelhead[browser])

``judge`` asks a chat endpoint on this machine for a grade of every answer: a scripted server in a process of its own
that replies after a fixed time, 8 calls at once, whoever asks; that of ``judge-tail`` takes 100 times as long over one
call in 32, and any number at once.  ``plain`` scores in no time.  Runs of the settings take turns; steps before the
third are warm-up.  Processor seconds are those of this process: the work is the same but for the copies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from levelhead.api import train
from levelhead.recipe import load
from levelhead.records import Decision, StepRecord

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 8
WARM = 2
LATE = 100
SETTINGS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of step.

    Attributes:
        what: In words.
        latency: Seconds that the judge takes to reply; ``None`` where nobody is asked.
        browser: Whether it plays in a browser instead.
        groups: Prompts of a step, 8 rollouts each.
        tail: Calls of which one takes 100 times as long; 0 none.
        at_once: Calls at once.
    """

    what: str
    latency: float | None = None
    browser: bool = False
    groups: int = 8
    tail: int = 0
    at_once: int = AT_ONCE


WORKLOADS = {
    "plain": Workload("rewards in no time"),
    "judge-50ms": Workload("64 calls of 50 ms, 8 at once", 0.05),
    "judge-500ms": Workload("64 calls of 500 ms, 8 at once", 0.5),
    "judge-tail": Workload("64 calls of 50 ms, all at once, one in 32 of 5 s", 0.05, tail=32, at_once=1024),
    "browser": Workload("web tasks in Chromium", browser=True, groups=6),
}


async def _reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency: float, tail: int) -> None:
    """Grade whatever is asked, keep the connection."""
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Grade: 7"}}]}).encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            asked = await reader.readexactly(length)
            late = tail and zlib.crc32(asked) % tail == 0
            await asyncio.sleep(latency * (LATE if late else 1))
            writer.write(answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve(latency: float, tail: int, port: Any) -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: _reply(r, w, latency, tail), "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def judge(workload: Workload) -> Iterator[Callable[..., Any]]:
    """A reward function that asks a server about every answer, or nobody."""
    latency = workload.latency

    def reward(completion_ids: Sequence[Sequence[int]]) -> list[float]:
        return [sum(i % 2 for i in ids) / max(len(ids), 1) for ids in completion_ids]

    def alone(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:  # noqa: ARG001
        return reward(completion_ids)

    if latency is None:
        yield alone
        return
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=_serve, args=(latency, workload.tail, ports), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ports.get(timeout=60)}/v1/chat/completions"

    room = asyncio.Semaphore(workload.at_once)

    async def judged(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:  # noqa: ARG001
        async def ask(client: httpx2.AsyncClient, text: str) -> float:
            async with room:
                reply = await client.post(url, json={"messages": [{"role": "user", "content": text}]})
            return float(reply.json()["choices"][0]["message"]["content"].removeprefix("Grade: ")) / 10

        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
            grades = await asyncio.gather(*(ask(client, str(text)) for text in completions))
        return [r * g for r, g in zip(reward(completion_ids), grades, strict=True)]

    try:
        yield judged
    finally:
        server.terminate()
        server.join()


def settings(workload: Workload, steps: int, ahead: int) -> list[str]:
    """Overrides that make a short run of a workload."""
    shared = [
        f"grpo.steps={steps}", f"grpo.async={ahead}", "threads=1", "check=false", "eval.every=0",
        "eval.final_items=1", "checkpoint.best=false", "checkpoint.every=0", "guard.policy=off", "log.rollouts_every=0",
        f"grpo.batch_size={8 * workload.groups}",
    ]  # fmt: skip
    return [*shared, "grpo.dynamic_sampling=0", "sft.steps=4"] if workload.browser else shared


def recipe(folder: Path, workload: Workload) -> Path:
    """Path of the recipe of a workload."""
    if workload.browser:
        return ROOT / "recipes" / "browser-tiny.yaml"
    path = folder / "recipe.yaml"
    tiny = {"hidden_size": 128, "layers": 3, "heads": 4, "kv_heads": 2, "intermediate_size": 384, "context": 256}
    text = {
        "name": "ahead",
        "model": {"preset": "tiny", "tiny": tiny},
        "tasks": [{"kind": "function", "name": "judged"}],
        "grpo": {"group_size": 8, "sampling": {"max_new_tokens": 32}, "optimizer": {"learning_rate": 1e-4}},
    }
    path.write_text(json.dumps(text), encoding="utf-8")
    return path


class _Clock:
    """Notes the processor seconds of this process after every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def before_update(self, record: StepRecord) -> list[Decision]:  # noqa: ARG002
        """Change nothing."""
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:  # noqa: ARG002
        """Note the time."""
        self.seconds.append(time.process_time())
        return []


def measure(workload: Workload, steps: int, ahead: int) -> list[dict[str, float]]:
    """Seconds of the steps of one run behind its warm-up."""
    rows = [{"prompt": f"question {i}: what becomes of {i} things?", "answer": str(i)} for i in range(512)]
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder, judge(workload) as reward:
        given = load(recipe(Path(folder), workload), settings(workload, steps, ahead))
        own: dict[str, Any] = {} if workload.browser else {"data": rows, "rewards": reward}
        train(given, out=Path(folder) / "run", observers=[clock], **own)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = [row for row in map(json.loads, lines) if row["stage"] == "grpo"]
    spent = [b - a for a, b in zip(clock.seconds, clock.seconds[1:], strict=False)]
    names = ("step_time", "time/sample", "time/score", "time/env", "time/train", "time/wait", "off_policy/mean")
    # The last steps begin no batch; what they save there belongs to none.
    return [
        {"async": ahead, "processor": processor, **{name: row[name] for name in names if name in row}}
        for row, processor in zip(recorded[1:], spent, strict=True)
    ][WARM - 1 : -max(ahead, 1)]


def summary(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Median and range of every number, by setting."""
    table: dict[str, Any] = {}
    for ahead in SETTINGS:
        mine = [row for row in rows if row["async"] == ahead]
        names = [name for name in mine[0] if name != "async"]
        columns = {name: sorted(row[name] for row in mine) for name in names}
        table[f"async {ahead}"] = {
            name: [round(x, 4) for x in (statistics.median(column), column[0], column[-1])]
            for name, column in columns.items()
        }
    plain = table["async 0"]["step_time"][0]
    return table | {
        f"faster {ahead}": round(plain / table[f"async {ahead}"]["step_time"][0], 3) for ahead in SETTINGS if ahead
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ["plain", "judge-50ms", "judge-500ms", "judge-tail"]
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=default)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each setting, in turn")
    parser.add_argument("--json", type=Path, help="also write the figures here; other workloads in it are kept")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        rows = [
            row
            for _ in range(arguments.repeats)
            for ahead in SETTINGS
            for row in measure(workload, arguments.steps, ahead)
        ]
        load_average = round(os.getloadavg()[1], 1)
        results[name] = {
            "what": workload.what,
            "load": load_average,
            "steps": len(rows) // len(SETTINGS),
            **summary(rows),
        }
        print(json.dumps({name: results[name]}), flush=True)
    if arguments.json:
        earlier = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        arguments.json.write_text(json.dumps({**earlier, **results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
