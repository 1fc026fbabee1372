"""Kill runs at random moments, resume them, and compare what is left with a run that nobody touched, to the bit.

    python bench/kills.py --kills 20 --out runs/kills
    python bench/kills.py --kills 200 --case dual-tiny --case workflow-tiny --set grpo.steps=12

Each case is a recipe that ships, cut down by overrides.  It is run once undisturbed, then again and again: SIGKILL
comes at a seeded moment after it has locked its folder, ``--resume`` goes on, up to four times a run, and the last
sitting is left alone.  Compared are weights, optimizer, tokenizer, reference, metrics, events, rollouts, summary and
report; seconds and the events that tell of the kills are left out.  A line a run goes to ``kills.jsonl``; the exit code
is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

import levelhead.cli.main
import levelhead.policy.load
import levelhead.training.run
from levelhead.report.page import render
from levelhead.report.reading import read_run

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "threads=1",
    "check=false",
    "sft.steps=3",
    "sft.batch_size=4",
    "grpo.steps=5",
    "grpo.batch_size=16",
    "grpo.group_size=4",
    "grpo.sampling.max_new_tokens=12",
    "eval.sampling.max_new_tokens=12",
    "eval.every=2",
    "eval.items=4",
    "eval.final_items=4",
    "eval.constant=false",
    "checkpoint.every=1",
    "log.rollouts_every=1",
    "log.rollouts=8",
)
"""Steps and sizes of every case."""
CASES: dict[str, tuple[str, ...]] = {
    "dual-tiny": ("tasks.0.items=200", "tasks.1.items=200"),
    "dual-constant": ("tasks.0.items=200", "tasks.1.items=200"),
    "dual-tiny lora": ("tasks.0.items=200", "tasks.1.items=200", "model.lora.r=4", "sft.optimizer.kind=adamw"),
    "dual-constant async": ("tasks.0.items=200", "tasks.1.items=200", "grpo.async=1"),
    "dual-tiny judged": (
        "tasks.0.items=200",
        "tasks.1.items=200",
        "grpo.sampling.max_new_tokens=40",  # so that some answers are right: the judge sees no others
        "eval.sampling.max_new_tokens=40",
        *(
            f'tasks.{i}.judges={{members: [{{name: honest, model: m, base_url: "http://127.0.0.1:PORT/honest/v1"}}]}}'
            for i in (0, 1)
        ),
    ),
    "workflow-tiny": ("tasks.0.items=300",),
    "workflow-collapse": ("tasks.0.items=300",),
    "browser-tiny": ("tasks.0.items=30", "tasks.0.pages=2", "tasks.0.spare_pages=1"),
    "browser-deadlock": ("tasks.0.items=30", "tasks.0.pages=2", "tasks.0.spare_pages=1"),
    "base-tiny/1": ("tasks.0.settings.items=300",),
}
"""Recipe and further overrides of each case; recipes of models from the hub are not among them."""
WITH_DATA = {"dual-bbq-halueval": ("sft.steps=2", "tasks.0.path={}/bbq", "tasks.1.path={}/halueval")}
"""Cases that need ``--data``."""
PER_RUN = 4
"""Most kills of one run."""
ABOUT_THE_KILL = {"lock-taken-over", "interrupted", "browser-started", "browser-leftover-ended"}
"""Codes of events that a run which nobody touched does not have."""
TIMED = {"seconds", "sizes", "step_time", "time_limit", "last_row"}
"""Keys that hold seconds, or what follows from them: of ``last_row``, the metrics are compared themselves."""


@contextmanager
def judges() -> Iterator[None]:
    """Run the fake judges, and write their port where the cases ask for it."""
    script = Path(__file__).parent / "judgelib" / "temperaments.py"
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        CASES.update({name: tuple(s.replace("PORT", port) for s in sets) for name, sets in CASES.items()})
        yield
        process.stdin.close()


def command(case: str, settings: Sequence[str], run: Path, *, resume: bool) -> list[str]:
    line = ["levelhead", "train", str(ROOT / "recipes" / f"{case.split()[0]}.yaml"), "--out", str(run)]
    for setting in (*SMALL, *CASES.get(case, ()), *settings):
        line += ["--set", setting]
    return [*line, "--resume"] if resume else line


def sitting(line: Sequence[str], run: Path, after: float | None) -> tuple[bool, float]:
    """Start a run in a process of its own, and kill it so many seconds after it has begun to train.

    Returns:
        Whether it was killed, and the seconds that it trained.
    """
    log = run.with_name(f"{run.name}.log")
    pid = os.fork()  # with everything imported: most of a short run's time
    if not pid:
        _train(line, log)
    status = 0
    while holder(run) != pid and not (status := _ended(pid)):
        time.sleep(0.005)
    begun = time.monotonic()
    while not status and (after is None or time.monotonic() - begun < after):
        time.sleep(0.005)
        status = _ended(pid)
    seconds = time.monotonic() - begun
    if not status:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return True, seconds
    if status != DONE:
        raise SystemExit(f"{run}: exit {os.waitstatus_to_exitcode(status - DONE)}, see {log}")
    return False, seconds


def _train(line: Sequence[str], log: Path) -> NoReturn:
    """Be the command line."""
    code: Any = 3
    try:
        os.setsid()
        with log.open("a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv[:] = line
        levelhead.cli.main.main()
    except SystemExit as left:
        code = left.code
    finally:
        os._exit(code if isinstance(code, int) else 0 if code is None else 3)


DONE = 1 << 20
"""Marks a process that has ended, in what :func:`_ended` returns; its status is the rest."""


def _ended(pid: int) -> int:
    """0 while a process runs, then :data:`DONE` and its status."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return DONE + status if ended else 0


def holder(run: Path) -> int | None:
    """Number of the process that holds a run's folder, the one that was killed before included."""
    try:
        return int(json.loads((run / "run.lock").read_text(encoding="utf-8"))["pid"])
    except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or not yet written
        return None


def contents(run: Path) -> dict[str, Any]:
    """What two runs of one seed have in common, by name."""
    files: dict[str, Any] = {}
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        name = path.relative_to(run).as_posix()
        if path.name in ("state.json", "summary.json"):
            files[name] = timeless(json.loads(path.read_text(encoding="utf-8")))
        elif path.name == "training.pt":
            files[name] = list(leaves(torch.load(path, weights_only=True)))
        elif name == "metrics.jsonl" or name == "events.jsonl":
            files[name] = [timeless(json.loads(line)) for line in lines(path)]
        elif path.name not in ("manifest.json", "report.html", "environment.json"):
            files[name] = path.read_bytes()
    files["events.jsonl"] = [e for e in files.get("events.jsonl", []) if e["code"] not in ABOUT_THE_KILL]
    files["report.html"] = page(run) if (run / "report.html").is_file() else None
    return files


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def timeless(value: Any) -> Any:
    """JSON without seconds, and without sizes and hashes of what holds seconds."""
    if isinstance(value, dict):
        lasting = {k: v for k, v in value.items() if k not in TIMED and "/latency_" not in k}
        return {k: timeless(v) for k, v in lasting.items() if not k.startswith("time/")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors (as bytes) and numbers of a nested state, by name."""
    if isinstance(value, torch.Tensor):
        yield (
            name,
            (str(value.dtype), tuple(value.shape), value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()),
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}.{index}")
    else:
        yield name, value


def page(run: Path) -> str:
    """The report of a run as it would be without seconds and without the kills."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
        for name in ("metrics.jsonl", "events.jsonl"):
            if (copy / name).is_file():
                rows = [timeless(json.loads(line)) for line in lines(copy / name)]
                rows = [row for row in rows if row.get("code") not in ABOUT_THE_KILL]
                (copy / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        summary = timeless(json.loads((copy / "summary.json").read_text(encoding="utf-8")))
        (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        return render(read_run(copy)).replace(folder, "")


def differences(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    names = sorted({*wanted, *got})
    return [name for name in names if name not in wanted or name not in got or wanted[name] != got[name]]


def killed_run(
    case: str, settings: Sequence[str], run: Path, draw: random.Random, most: int, lasts: float
) -> list[float]:
    """Run a case with some kills, at most one a sitting; returns after how many seconds of training each came."""
    shutil.rmtree(run, ignore_errors=True)
    kills: list[float] = []
    for _ in range(most):
        killed, seconds = sitting(command(case, settings, run, resume=run.exists()), run, draw.uniform(0, lasts))
        if not killed:
            return kills
        kills.append(round(seconds, 2))
    sitting(command(case, settings, run, resume=run.exists()), run, None)
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills in all, dealt over the cases")
    parser.add_argument("--case", action="append", choices=sorted({**CASES, **WITH_DATA}), help="only these")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further overrides")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--data", help="folder with bbq and halueval, for the recipe that reads them")
    parser.add_argument("--out", type=Path, default=Path("runs/kills"))
    given = parser.parse_args()
    more = {name: tuple(s.format(given.data) for s in sets) for name, sets in WITH_DATA.items() if given.data}
    cases = given.case or [*CASES, *more]
    torch.set_num_threads(1)
    draw = random.Random(given.seed)
    wanted: dict[str, tuple[dict[str, Any], float]] = {}
    done, wrong, runs = 0, 0, 0
    given.out.mkdir(parents=True, exist_ok=True)
    while done < given.kills:
        case = cases[runs % len(cases)]
        settings = (*more.get(case, ()), *given.set)
        slug = case.replace(" ", "-").replace("/", "-")
        if case not in wanted:
            alone = given.out / f"{slug}-alone"
            shutil.rmtree(alone, ignore_errors=True)
            _, seconds = sitting(command(case, settings, alone, resume=False), alone, None)
            wanted[case] = contents(alone), seconds
        most = min(draw.randint(1, PER_RUN), given.kills - done)
        run = given.out / f"{slug}-{runs:03d}"
        kills = killed_run(case, settings, run, draw, most, wanted[case][1])
        unlike = differences(wanted[case][0], contents(run))
        row = {"case": case, "run": run.name, "kills": kills, "differs": unlike}
        with (given.out / "kills.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        done, wrong, runs = done + len(kills), wrong + bool(unlike), runs + 1
        if not unlike:
            shutil.rmtree(run)
    print(f"{done} kills of {runs} runs: {runs - wrong} ended like the undisturbed run to the bit, {wrong} did not")
    return int(wrong > 0)


if __name__ == "__main__":
    with judges():
        sys.exit(main())
