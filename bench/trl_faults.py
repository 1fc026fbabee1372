"""Real GRPO runs in TRL, sound and with one thing wrong each, and what the doctor says while and after they run.

Usage, with a Python that has TRL:
``PYTHONPATH=src python bench/trl_faults.py [--steps 40] [--seeds 2] [--stop] [--out FILE] [NAME ...]``, and
``python bench/trl_faults.py --out FILE --write`` for the table of ``docs/trl.md``, which trains nothing.

The cause is known because it was put there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "trl.md"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from trllib import listen  # noqa: E402

import trl_run  # noqa: E402
from levelhead.integrations.trl import LevelheadCallback  # noqa: E402

Reward = Callable[..., list[float]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what is changed, and which findings name it; ``new`` where it was thought of when all else was done."""

    right: tuple[str, ...]
    reward: Reward | type = trl_run.four_times
    settings: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Any, Any], None] = lambda _model, _words: None
    new: bool = False


def of(value: float) -> Reward:
    """A reward that is always the same."""
    return lambda completions, **_: [value] * len(completions)


def of_the_prompt(prompts: Sequence[str], **_: Any) -> list[float]:
    """Judges the prompt and not the answer: differs between groups, never within one."""
    return [0.1 * (1 + trl_run.LETTERS.index(p[0])) for p in prompts]


def exact(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """Right or wrong, and too hard to be right by chance."""
    return [float(text == p[0] * trl_run.LONGEST) for p, text in zip(prompts, completions, strict=True)]


def for_length(completions: Sequence[str], **_: Any) -> list[float]:
    """Pays for letters of any kind."""
    return [len(text) / trl_run.LONGEST for text in completions]


class Judge:
    """A judge whose service is away from its 12th to its 20th batch, and then answers 0."""

    __name__ = "judge"

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
        """Grade."""
        self.batches += 1
        if 12 <= self.batches < 20:
            return [0.0] * len(completions)
        return [1 + score for score in trl_run.four_times(prompts, completions)]


class Stuck:
    """A cache whose key lacks the answer: from its 15th batch on every answer gets the grade of the first."""

    __name__ = "stuck"

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
        """Grade."""
        self.batches += 1
        scores = trl_run.four_times(prompts, completions)
        return scores if self.batches < 15 else [0.25] * len(scores)


class Dice:
    """Grades that have nothing to do with the answer."""

    __name__ = "dice"

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __call__(self, completions: Sequence[str], **_: Any) -> list[float]:
        """Grade."""
        return [self.rng.random() for _ in completions]


def of_the_neighbour(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """Judges each group's answers by the prompt of the group before."""
    return trl_run.four_times([prompts[i - 8] for i in range(len(prompts))], completions)


def freeze(model: Any, _words: Any) -> None:
    """Nothing that matters is trained."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    model.lm_head.weight.register_hook(lambda gradient: gradient * 0)


def no_end(model: Any, words: Any) -> None:
    """The end token that generation waits for is one that the policy does not write."""
    model.generation_config.eos_token_id = words.pad_token_id
    words.eos_token = "<pad>"


def turned(model: Any, _words: Any) -> None:
    """Every gradient has the wrong sign."""
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: -gradient)


def break_at(step: int) -> Callable[[Any, Any], None]:
    """Gradients turn to NaN from a step on."""

    def change(model: Any, _words: Any) -> None:
        calls = [0]

        def hook(gradient: Any) -> Any:
            calls[0] += 1
            return gradient * (math.nan if calls[0] >= step else 1.0)

        model.lm_head.weight.register_hook(hook)

    return change


RUNS: dict[str, Run] = {
    "sound": Run(()),
    "sound, with a KL penalty": Run((), settings={"beta": 0.02}),
    "sound, slow": Run((), settings={"learning_rate": 3e-3}),
    "sound, pays for length": Run((), reward=for_length),
    "sound, two updates a batch": Run((), settings={"num_iterations": 2}),
    "constant reward": Run(("reward-dead-groups", "deadlock", "zero-gradient-despite-signal"), reward=of(0.5)),
    "reward judges the prompt": Run(("reward-dead-groups",), reward=of_the_prompt),
    "never right": Run(("no-learning-signal-all-zero-reward",), reward=exact),
    "always right": Run(("saturated-all-one-reward",), reward=of(1.0)),
    "learning rate 0.1": Run(
        ("lr-too-high", "deadlock", "entropy-collapse", "catastrophic-update"), settings={"learning_rate": 1e-1}
    ),
    "learning rate 1": Run(
        ("lr-too-high", "deadlock", "entropy-collapse", "catastrophic-update", "entropy-explosion"),
        settings={"learning_rate": 1.0, "max_grad_norm": 1e9},
    ),
    "learning rate 0.1 with a KL penalty": Run(
        ("lr-too-high", "kl-blowup", "deadlock", "entropy-collapse"), settings={"learning_rate": 1e-1, "beta": 0.02}
    ),
    "gradients of NaN from step 8": Run(("nonfinite",), change=break_at(8)),
    "gradients lost": Run(("zero-gradient-despite-signal",), change=freeze),
    "no end token": Run(("eos-never", "length-truncation"), change=no_end),
    "judge away": Run(("judge-failure",), reward=Judge),
    "learning rate 1e-9": Run(("no-improvement",), settings={"learning_rate": 1e-9}),
    "gradients turned round": Run(("no-improvement", "catastrophic-update"), change=turned, new=True),
    "grades by dice": Run(("no-improvement",), reward=Dice, new=True),
    "judged by the neighbour's prompt": Run(("no-improvement",), reward=of_the_neighbour, new=True),
    "grades stuck from the 15th batch": Run(
        ("reward-dead-groups", "judge-failure", "deadlock"), reward=Stuck, new=True
    ),
    "room for two tokens": Run(
        ("length-truncation", "eos-never", "length-fixed"), settings={"max_completion_length": 2}, new=True
    ),
    "temperature 0.02": Run(
        ("reward-dead-groups", "entropy-collapse", "deadlock"), settings={"temperature": 0.02}, new=True
    ),
    "weight decay 30": Run(
        ("lr-too-high", "entropy-explosion", "catastrophic-update"), settings={"weight_decay": 30.0}, new=True
    ),
    "KL penalty of 20": Run(("no-improvement",), settings={"beta": 20.0}, new=True),
}


def play(name: str, run: Run, steps: int, seed: int, stop: bool = False) -> dict[str, Any]:
    """Train, and note what the doctor said: live by step, and at the end."""
    crash: str | None = None
    callback, recorder = LevelheadCallback(report=False, stop=stop), listen.Recorder()
    reward = run.reward() if isinstance(run.reward, type) else run.reward
    with listen.listening() as said, listen.trainer_warnings() as warned, tempfile.TemporaryDirectory() as folder:
        try:
            more = {"callbacks": [callback, recorder], "change": run.change, **run.settings}
            trl_run.train(Path(folder), reward, steps=steps, seed=seed, **more)
        except RuntimeError as error:
            # Sampling from weights that are not finite: what was logged until then is what there is.
            crash = str(error)
    diagnosis = callback.live.diagnosis
    assert diagnosis is not None
    codes = [f.code for f in diagnosis.findings if f.severity != "info"]
    rewards = callback.live.history.series("reward").values
    return {
        "run": name,
        "seed": seed,
        "sick": bool(run.right),
        "new": run.new,
        "verdict": diagnosis.verdict,
        "stopped_at": callback.stopped_at,
        "found": listen.findings(callback),
        "right_first": bool(codes and codes[0] in run.right) if run.right else not codes,
        "right_named": bool(set(codes) & set(run.right)) if run.right else not codes,
        "live": dict(said),
        "trainer_said": list(warned),
        "reward": [round(rewards[0], 3), round(sum(rewards[-5:]) / len(rewards[-5:]), 3)],
        "crash": crash,
        "log": recorder.rows,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """The page's table."""
    lines = [
        "| run | reward, first and last five | verdict: findings, confidence, first bad step | told | ends | cause |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        said = ", ".join(
            f"`{code}` {round(100 * f[0])}%" + (f" @{f[1]:.0f}" if f[1] is not None else "")
            for code, f in r["found"].items()
        )
        cause = "first" if r["right_first"] else "named" if r["right_named"] else "**other**" if said else "**missed**"
        ends = r["stopped_at"] or (f"sampling fails after {len(r['log'])}" if r["crash"] else "")
        lines.append(
            f"| {r['run']}{' (new)' if r['new'] else ''} | {r['reward'][0]:.2f}, {r['reward'][1]:.2f} | "
            f"{r['verdict']}{': ' + said if said else ''} | {min(r['live'].values(), default='')} | {ends} | "
            f"{cause if r['sick'] else '**false alarm**' if said else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="runs to play; all unless given")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write results, logs included, as JSON lines")
    parser.add_argument("--stop", action="store_true", help="let the callback end a run that it calls critical")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the page's table from FILE's runs of seed 0")
    arguments = parser.parse_args()
    if arguments.write:
        results = [json.loads(line) for line in arguments.out.read_text(encoding="utf-8").splitlines()]
        listen.write_between(PAGE, "faults", table([r for r in results if r["seed"] == 0]))
        return
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for name in arguments.names or RUNS:
            result = play(name, RUNS[name], arguments.steps, seed, arguments.stop)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(result) + "\n")
            log = result.pop("log")
            print(f"{'ok ' if result['right_first'] else 'BAD'} {json.dumps(result)} {len(log)} rows", flush=True)


if __name__ == "__main__":
    main()
