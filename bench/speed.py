"""One GRPO step, ours and TRL's side by side: alternating in one run, on the same model, prompts and token counts.

    python bench/speed.py --peer ~/trl/bin/python [--workloads balanced page] [--repeats 5] [--threads 2]
    python bench/speed.py --peer ~/trl/bin/python --model DIR --workloads real real-lora real-lora-bf16

TRL runs in its own environment: ``--peer`` (or ``LEVELHEAD_BENCH_TRL``) is its Python, with ``trl`` and, for the
workload ``lora``, ``peft`` installed.  Without one, ours is measured alone, and the table says so.

Each side does ``--warmup`` steps, then the sides take turns.  Then peak memory is read, above what imports alone take,
and both compute the gradient of one fixed batch, so that they are known to do the same work.  The table goes to stdout,
everything measured to ``--out``, after each workload.  On a machine that others use, trust the column of processor
seconds, which their work does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speedlib import compare, roofline
from speedlib.workloads import WORKLOADS, Workload, real, write

HERE = Path(__file__).parent
PEER = "LEVELHEAD_BENCH_TRL"

PEER_SETTINGS: dict[str, dict[str, Any]] = {
    "whole batch at once": {},
    "8 rows at once": {"accumulate": "rows/8"},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bf16": {"bf16": True},
    "bf16, 8 rows at once": {"bf16": True, "accumulate": "rows/8"},
    "continuous batching": {"use_transformers_continuous_batching": True},
    "static cache": {"cache_implementation": "static"},
    "torch.compile": {"torch_compile": True},
    "liger kernels": {"use_liger_kernel": True},
}
"""What ``--explore`` tries for TRL."""

PEER_BEST: dict[str, str] = {"real-lora": "8 rows at once", "real-lora-bf16": "bf16, 8 rows at once"}
"""TRL's setting for a workload; elsewhere the whole batch at once, which ``--explore`` found to be its fastest.

With an adapter on the real model a whole batch takes 14 GiB, and was killed on a machine of 23 that was shared.
"""


class Worker:
    """A process that does one step when told to."""

    def __init__(self, command: list[str], threads: int, path: str) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=variables
        )
        self.hello = self._answer()

    def ask(self, *command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError("".join(self._errors.readlines()[-12:]))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._errors.close()


class Bench:
    """One workload on disk, and the workers that run it."""

    def __init__(self, options: argparse.Namespace, workload: Workload, folder: Path) -> None:
        self.options, self.workload, self.folder = options, workload, folder
        write(workload, folder)

    def ours(self) -> Worker:
        command = [sys.executable, str(HERE / "speedlib" / "ours.py"), str(self.folder), self.options.ours]
        return Worker(command, self.options.threads, os.environ.get("PYTHONPATH", ""))

    def peer(self, setting: str) -> Worker:
        settings = dict(PEER_SETTINGS[setting])
        if settings.get("accumulate") == "rows/8":
            settings["accumulate"] = self.workload.rows // 8
        command = [self.options.peer, str(HERE / "speedlib" / "trl_side.py"), str(self.folder), json.dumps(settings)]
        return Worker(command, self.options.threads, self.options.peer_path)

    def side_by_side(self) -> dict[str, Any]:
        """Warm-up, alternating steps, peak memory, gradients; the sides are processes of their own."""
        setting = PEER_BEST.get(self.workload.name, "whole batch at once")
        makers = {"ours": self.ours} | ({"trl": lambda: self.peer(setting)} if self.options.peer else {})
        workers = {name: make() for name, make in makers.items()}
        result: dict[str, Any] = {"workload": asdict(self.workload), "trl_setting": setting}
        result["versions"] = {name: worker.hello["versions"] for name, worker in workers.items()}
        for _ in range(self.options.warmup):
            for worker in workers.values():
                worker.ask("step")
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        for _ in range(self.options.repeats):
            for name, worker in workers.items():
                load = os.getloadavg()[0]
                rows[name].append(worker.ask("step") | {"load": load})
        result["memory"] = {name: worker.ask("memory") for name, worker in workers.items()}
        paths = {name: self.folder / f"{name}.safetensors" for name in workers}
        for name, worker in workers.items():
            worker.ask("gradient", str(paths[name]))
        if "trl" in workers:
            result["gradient"] = compare.gradients(paths["ours"], paths["trl"])
        for worker in workers.values():
            worker.close()
        result["steps"] = rows
        result["summary"] = {name: compare.summary(steps) for name, steps in rows.items()}
        return result

    def explore(self) -> dict[str, Any]:
        """Try TRL's settings one by one."""
        result: dict[str, Any] = {}
        for setting in self.options.settings:
            try:
                worker = self.peer(setting)
                for _ in range(self.options.warmup):
                    worker.ask("step")
                steps = [worker.ask("step") for _ in range(self.options.repeats)]
                result[setting] = {"summary": compare.summary(steps), **worker.ask("memory")}
                worker.close()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                result[setting] = {"error": ([*str(error).strip().splitlines()] or ["it ended"])[-1]}
            print(f"{self.workload.name}: {setting}: {json.dumps(result[setting])[:300]}", file=sys.stderr)
        return result


def table(results: dict[str, Any]) -> str:
    """The Markdown table of the side-by-side runs."""
    lines = [
        (
            "| workload | side | s a step (range) | processor s (range) | sampling | scoring | forward/backward "
            "| optimizer | tokens/s | peak memory | faster | processor | memory |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        whole = {side: summary["seconds"]["median"] for side, summary in result["summary"].items()}
        for side, summary in result["summary"].items():
            spreads = [
                f"{x['median']:.2f} ({x['min']:.2f}-{x['max']:.2f})" for x in (summary["seconds"], summary["cpu"])
            ]
            parts = [f"{summary[key]['median']:.2f}" for key in ("sampling", "scoring", "backward", "optimizer")]
            peak = result["memory"][side]["peak"]
            ratios = ["", "", ""]
            if side == "ours" and "trl" in whole:
                processor = result["summary"]["trl"]["cpu"]["median"] / summary["cpu"]["median"]
                ratios = [f"{whole['trl'] / whole['ours']:.1f}x", f"{processor:.1f}x"]
                ratios.append(f"{peak / result['memory']['trl']['peak']:.2f}")
            rate = f"{summary['drawn']['median'] / whole[side]:,.0f}"
            cells = [name, side, *spreads, *parts, rate, f"{peak / 2**20:,.0f} MiB", *ratios]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=[], metavar="NAME", help="all of them unless named")
    parser.add_argument("--model", type=Path, help="folder of a real model: adds real, real-lora and real-lora-bf16")
    parser.add_argument("--peer", default=os.environ.get(PEER), help="Python of TRL's environment")
    parser.add_argument("--peer-path", default="", help="PYTHONPATH of TRL's process")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ours", default="{}", help="JSON: model, grpo (recipe keys) and dtype for our side")
    parser.add_argument("--explore", action="store_true", help="try TRL's settings instead, and say which is best")
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=list(PEER_SETTINGS),
        default=list(PEER_SETTINGS),
        metavar="NAME",
        help="what --explore tries",
    )
    parser.add_argument("--profile", type=int, metavar="ROWS", help="print our side's costliest operators instead")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of an earlier run instead")
    parser.add_argument("--out", type=Path, help="where the raw numbers go")
    return parser.parse_args()


def save(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write what has been measured so far."""
    if not options.out or not results:
        return
    machine = {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    machine |= {"threads": options.threads}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "command": sys.argv, "results": results}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    options = parsed()
    if options.show:
        document = json.loads(options.show.read_text(encoding="utf-8"))
        print(table(document["results"]))
        print(roofline.report(document["results"]))
        return
    if not options.peer:
        print(f"no --peer and no {PEER}: measuring ours alone", file=sys.stderr)
    results: dict[str, Any] = {}
    workloads = WORKLOADS | (real(options.model) if options.model else {})
    unknown = sorted({*options.workloads} - {*workloads})
    if unknown:
        raise SystemExit(
            f"no workload is called {', '.join(unknown)}; there are {', '.join(workloads)} (real ones with --model)"
        )
    with tempfile.TemporaryDirectory() as root:
        for name in options.workloads or list(workloads):
            bench = Bench(options, workloads[name], Path(root) / name)
            if options.explore:
                results[name] = bench.explore()
            elif options.profile:
                worker = bench.ours()
                worker.ask("step")
                print(worker.ask("profile", str(options.profile))["table"])
                worker.close()
            else:
                results[name] = bench.side_by_side() | {"roofline": roofline.limits(workloads[name], options.threads)}
                print(f"{name}: measured", file=sys.stderr)
            save(options, results)
    if options.profile:
        return
    if options.explore:
        for name, settings in results.items():
            timed = {k: v["summary"]["seconds"]["median"] for k, v in settings.items() if "summary" in v}
            print(f"{name}: best is {min(timed, key=lambda k: timed[k])!r}: {timed}")
        return
    print(table(results))
    print(roofline.report(results))


if __name__ == "__main__":
    main()
