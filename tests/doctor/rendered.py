"""Known numbers written down in every form in which people paste them, with what a reader should find there.

Every form is a function of a run and a seeded generator; it gives the text and the readings that a person sees in it:
``(signal, step, value)`` with the value as printed, a step of ``None`` where the text names none, or the name of a
statistic in place of the step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Place = float | str | None
Reading = tuple[str, Place, float]
Run = list[tuple[int, dict[str, float]]]


@dataclass(slots=True)
class Rendered:
    """A text and the readings in it."""

    text: str = ""
    readings: list[Reading] = field(default_factory=list)


NAMES: dict[str, tuple[str, ...]] = {
    "reward": ("reward", "mean_reward", "avg_reward", "Reward", "reward_mean"),
    "reward_std": ("reward_std", "std_reward", "Reward Std", "group_reward_std"),
    "kl": ("kl", "KL", "kl_loss", "mean_kl", "kl_div", "KL Divergence"),
    "entropy": ("entropy", "Entropy", "policy_entropy", "mean_entropy"),
    "grad_norm": ("grad_norm", "Grad Norm", "gradient_norm", "gnorm"),
    "loss": ("loss", "Loss", "total_loss", "train_loss"),
    "completions/mean_length": ("completion_length", "response_length", "mean_length", "gen_len"),
    "completions/clipped_ratio": ("clipped_ratio", "truncation_rate", "truncated_ratio", "trunc_frac"),
    "frac_reward_zero_std": ("frac_reward_zero_std", "zero_std_frac", "dead_groups", "frac_zero_std"),
    "learning_rate": ("learning_rate", "lr", "LR"),
}
OWN: dict[str, tuple[str, ...]] = {
    "reward": ("r_total", "tot_rew", "rwd_avg", "batch_rew_mean", "RewardMean", "R_mean"),
    "reward_std": ("rew_sd", "rwd_stddev", "r_sigma", "spread_of_rewards"),
    "kl": ("kl_to_sft", "ref_kl_mean", "kld", "KL(pi||ref)", "kl_vs_base_nats"),
    "entropy": ("tok_entropy", "ent_avg", "H_mean", "entropy_nats", "actor_ent"),
    "grad_norm": ("g_norm", "gradnorm_total", "grad_l2_norm", "GradientNorm", "global_grad_norm"),
    "loss": ("loss_total", "grpo_loss", "objective_loss", "lossAvg"),
    "completions/mean_length": ("resp_len", "ans_tokens_mean", "out_len_avg", "toks_per_completion", "genLen"),
    "completions/clipped_ratio": ("frac_hit_limit", "trunc_share", "cut_frac", "pct_truncated_01", "hit_max_tokens"),
    "frac_reward_zero_std": ("dead_grp_frac", "flat_groups_share", "frac_groups_no_var", "no_signal_groups_frac"),
    "learning_rate": ("lr_now", "cur_lr", "learning-rate", "stepLR"),
}
SPEECH: dict[str, tuple[str, ...]] = {
    "reward": ("the reward", "mean reward", "average reward"),
    "reward_std": ("the reward std", "reward_std"),
    "kl": ("KL", "the KL divergence", "mean KL"),
    "entropy": ("entropy", "the policy entropy"),
    "grad_norm": ("grad norm", "the gradient norm", "grad_norm"),
    "loss": ("the loss", "training loss"),
    "completions/mean_length": ("response length", "the mean completion length", "completion length"),
    "completions/clipped_ratio": ("the truncation rate", "clipped_ratio"),
    "frac_reward_zero_std": ("frac_reward_zero_std", "the share of dead groups"),
    "learning_rate": ("the learning rate", "lr"),
}
SHORT_UNIT = {"completions/mean_length": " tokens", "kl": " nats", "entropy": " nats"}
FRACTIONS = ("completions/clipped_ratio", "frac_reward_zero_std")


def draw(rng: random.Random, rows: int | None = None) -> Run:
    """A run of three to eight signals over a few rows, with numbers of the sizes that such signals have."""
    signals = rng.sample(sorted(NAMES), rng.randint(3, 8))
    if not {"reward", "kl", "entropy", "loss", "grad_norm"} & set(signals):
        signals[0] = "reward"
    count, gap, start = rows or rng.randint(2, 12), rng.choice((1, 5, 10, 50)), rng.choice((0, 1, 10))
    return [(start + gap * i, {name: _value(name, rng) for name in signals}) for i in range(count)]


def _value(name: str, rng: random.Random) -> float:
    if name == "completions/mean_length":
        return round(rng.uniform(20, 4000), rng.choice((0, 1, 2)))
    if name in FRACTIONS:
        return round(rng.random(), rng.choice((2, 3, 4)))
    if name == "learning_rate":
        return rng.choice((1e-6, 5e-7, 2.5e-6, 1e-5))
    if name == "kl":
        return float(f"{10 ** rng.uniform(-4, 4):.4g}")
    if name in ("grad_norm", "reward_std"):
        return float(f"{10 ** rng.uniform(-2, 1.5):.4g}")
    return round(rng.uniform(-1, 3) if name != "entropy" else rng.uniform(0.01, 3), 4)


def show(value: float) -> str:
    """A number as Python prints it."""
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else repr(value)


def names_of(run: Run, rng: random.Random, table: dict[str, tuple[str, ...]] = NAMES) -> dict[str, str]:
    """A spelling for every signal of the run."""
    return {name: rng.choice(table[name]) for name in run[0][1]}


def plain(run: Run, stepless: bool = False) -> list[Reading]:
    """All readings of a run."""
    return [(name, None if stepless else float(step), value) for step, row in run for name, value in row.items()]


Form = Callable[[Run, random.Random], Rendered]
FORMS: dict[str, Form] = {}


def form(function: Form) -> Form:
    """List a form under its own name."""
    FORMS[function.__name__] = function
    return function


def _dicts(run: Run, rng: random.Random, step: bool = True) -> list[str]:
    spelt = names_of(run, rng, {**NAMES, **{k: tuple(n for n in v if " " not in n) for k, v in NAMES.items()}})
    rows = [{**({"step": s} if step else {}), **{spelt[k]: v for k, v in row.items()}} for s, row in run]
    return [repr(row) for row in rows]


@form
def dict_lines(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(_dicts(run, rng)) + "\n", plain(run))


@form
def dict_cut_at_both_ends(run: Run, rng: random.Random) -> Rendered:
    lines = _dicts(run, rng)
    first, last = lines[0], lines[-1]
    lines[0] = first[first.index(", ") - 2 :]
    readings = plain(run[1:])
    names = list(run[0][1])
    readings += [(name, None, run[0][1][name]) for name in names]
    if len(lines) > 1:
        lines[-1] = last[: last.rindex(": ") + 3]
        readings.remove((names[-1], float(run[-1][0]), run[-1][1][names[-1]]))
    else:
        readings = [(n, None, v) for n, _, v in readings]
    return Rendered("\n".join(lines), [(n, None, v) for n, _, v in readings])


@form
def dict_body_over_lines(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    blocks = [
        "\n".join([f"  'step': {s},", *(f"  '{spelt[k]}': {show(v)}," for k, v in row.items())]) for s, row in run
    ]
    return Rendered("\n},\n{\n".join(blocks) + "\n}\n", plain(run))


@form
def json_nested(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [json.dumps({"step": s, "metrics": {spelt[k]: v for k, v in row.items()}}) for s, row in run]
    return Rendered("\n".join(lines) + "\n", plain(run))


def _pairs(
    run: Run, rng: random.Random, table: dict[str, tuple[str, ...]] = NAMES, sign: str = "=", gap: str = " "
) -> list[str]:
    spelt = {k: v.replace(" ", "_") for k, v in names_of(run, rng, table).items()}
    return [gap.join([f"step{sign}{s}", *(f"{spelt[k]}{sign}{show(v)}" for k, v in row.items())]) for s, row in run]


@form
def equals_and_spaces(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(_pairs(run, rng)) + "\n", plain(run))


@form
def equals_and_bare_commas(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(_pairs(run, rng, gap=",")) + "\n", plain(run))


@form
def colons_without_spaces(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(_pairs(run, rng, sign=":")) + "\n", plain(run))


@form
def semicolons(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(_pairs(run, rng, sign=": ", gap="; ")) + "\n", plain(run))


@form
def slashes(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(_pairs(run, rng, sign="=", gap=" / ")) + "\n", plain(run))


@form
def units(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [
        f"step {s}: " + ", ".join(f"{spelt[k]}: {_grouped(v)}{SHORT_UNIT.get(k, '')}" for k, v in row.items())
        for s, row in run
    ]
    return Rendered("\n".join(lines) + "\n", plain(run))


def _grouped(value: float) -> str:
    return f"{value:,}" if abs(value) >= 1000 else show(value)


@form
def percents(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [
        f"Step {s} - "
        + " - ".join(
            f"{spelt[k]}: {100 * v:.2f}%" if k in FRACTIONS else f"{spelt[k]}: {show(v)}" for k, v in row.items()
        )
        for s, row in run
    ]
    return Rendered("\n".join(lines) + "\n", plain(run))


@form
def plus_minus(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    drop = ("reward_std",)
    lines = [
        f"[step {s}] "
        + " ".join(
            f"{spelt[k].replace(' ', '_')}={show(v)} ± {show(abs(v) / 10)}" for k, v in row.items() if k not in drop
        )
        for s, row in run
    ]
    readings = [r for r in plain(run) if r[0] not in drop]
    readings += [("reward_std", float(s), float(show(abs(row["reward"]) / 10))) for s, row in run if "reward" in row]
    return Rendered("\n".join(lines) + "\n", readings)


@form
def pipes(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [f"Step {s} | " + " | ".join(f"{spelt[k]}: {show(v)}" for k, v in row.items()) for s, row in run]
    return Rendered("\n".join(lines) + "\n", plain(run))


@form
def one_metric_a_line(run: Run, rng: random.Random) -> Rendered:
    name = next(k for k in ("kl", "reward", "entropy", "loss", "grad_norm") if k in run[0][1])
    spelt = rng.choice(NAMES[name])
    head = rng.choice(("Step {} | ", "step {}: ", "[step {}] ", "iter {}, "))
    lines = [head.format(s) + f"{spelt}: {show(row[name])}" for s, row in run]
    return Rendered("\n".join(lines) + "\n", [(name, float(s), row[name]) for s, row in run])


@form
def one_metric_at(run: Run, rng: random.Random) -> Rendered:
    name = next(k for k in ("kl", "reward", "entropy", "loss", "grad_norm") if k in run[0][1])
    spelt = rng.choice(NAMES[name])
    lines = [f"{spelt}@{s} = {show(row[name])}" for s, row in run]
    return Rendered("\n".join(lines) + "\n", [(name, float(s), row[name]) for s, row in run])


def _table(run: Run, rng: random.Random, table: dict[str, tuple[str, ...]] = NAMES) -> list[list[str]]:
    spelt = names_of(run, rng, table)
    return [[rng.choice(("step", "Step")), *spelt.values()], *([str(s), *map(show, row.values())] for s, row in run)]


def _turned(cells: list[list[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*cells, strict=True)]


def _aligned(cells: list[list[str]], gap: str = "  ") -> str:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return (
        "\n".join(gap.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells) + "\n"
    )


def _markdown(cells: list[list[str]]) -> str:
    rows = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([rows[0], "|" + "---|" * len(cells[0]), *rows[1:]]) + "\n"


@form
def csv(run: Run, rng: random.Random) -> Rendered:
    return Rendered("\n".join(",".join(row) for row in _table(run, rng)) + "\n", plain(run))


@form
def spreadsheet(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    rows = [["step", *spelt.values()], *([str(s), *map(_grouped, row.values())] for s, row in run)]
    return Rendered("\n".join("\t".join(row) for row in rows) + "\n", plain(run))


@form
def markdown(run: Run, rng: random.Random) -> Rendered:
    return Rendered(_markdown(_table(run, rng)), plain(run))


@form
def columns_without_rules(run: Run, rng: random.Random) -> Rendered:
    return Rendered(_aligned(_table(run, rng)), plain(run))


@form
def box_drawing(run: Run, rng: random.Random) -> Rendered:
    cells = _table(run, rng)
    rows = ["│ " + " │ ".join(row) + " │" for row in cells]
    return Rendered("┌───┐\n" + rows[0] + "\n├───┤\n" + "\n".join(rows[1:]) + "\n└───┘\n", plain(run))


@form
def latex(run: Run, rng: random.Random) -> Rendered:
    cells = [[cell.replace("_", r"\_") for cell in row] for row in _table(run, rng)]
    rows = [" & ".join(row) + r" \\" for row in cells]
    return Rendered("\\toprule\n" + rows[0] + "\n\\midrule\n" + "\n".join(rows[1:]) + "\n\\bottomrule\n", plain(run))


@form
def html(run: Run, rng: random.Random) -> Rendered:
    head, *rows = _table(run, rng)
    lines = ["<table><tr>" + "".join(f"<th>{c}</th>" for c in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows]
    return Rendered("\n".join(lines) + "</table>\n", plain(run))


@form
def transposed_markdown(run: Run, rng: random.Random) -> Rendered:
    cells = _turned(_table(run, rng))
    cells[0] = [rng.choice(("metric", "Metric", "")), *(f"{rng.choice(('step ', 'Step '))}{c}" for c in cells[0][1:])]
    return Rendered(_markdown(cells), plain(run))


@form
def transposed_numbers(run: Run, rng: random.Random) -> Rendered:
    return Rendered(_markdown(_turned(_table(run, rng))), plain(run))


@form
def transposed_without_rules(run: Run, rng: random.Random) -> Rendered:
    return Rendered(_aligned(_turned(_table(run, rng)), rng.choice(("  ", "   "))), plain(run))


@form
def transposed_csv(run: Run, rng: random.Random) -> Rendered:
    cells = _turned(_table(run, rng))
    cells[0][0] = rng.choice(("metric", "name", "step"))
    return Rendered("\n".join(",".join(row) for row in cells) + "\n", plain(run))


@form
def long_csv(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = ["step,metric,value", *(f"{s},{spelt[k]},{show(v)}" for s, row in run for k, v in row.items())]
    return Rendered("\n".join(lines) + "\n", plain(run))


STATISTICS = ("mean", "min", "max", "first", "last")


def _statistics(run: Run, rng: random.Random, wanted: tuple[str, ...] = STATISTICS) -> dict[str, dict[str, float]]:
    return {name: {stat: _value(name, rng) for stat in wanted} for name in run[0][1]}


def _summary(numbers: dict[str, dict[str, float]]) -> list[Reading]:
    return [(name, stat, value) for name, row in numbers.items() for stat, value in row.items()]


@form
def statistics_markdown(run: Run, rng: random.Random) -> Rendered:
    wanted = rng.choice((STATISTICS, ("mean", "min", "max"), ("first", "last"), ("min", "max", "last")))
    numbers, spelt = _statistics(run, rng, wanted), names_of(run, rng)
    cells = [
        ["Metric", *(w.title() for w in wanted)],
        *([spelt[k], *map(show, row.values())] for k, row in numbers.items()),
    ]
    return Rendered(_markdown(cells), _summary(numbers))


@form
def statistics_without_rules(run: Run, rng: random.Random) -> Rendered:
    numbers, spelt = _statistics(run, rng), names_of(run, rng)
    cells = [["metric", *STATISTICS], *([spelt[k], *map(show, row.values())] for k, row in numbers.items())]
    return Rendered(_aligned(cells), _summary(numbers))


@form
def before_and_after(run: Run, rng: random.Random) -> Rendered:
    numbers, spelt = _statistics(run, rng, ("first", "last")), names_of(run, rng)
    heads = rng.choice(
        (("Before", "After"), ("start", "end"), ("Initial", "Final"), ("before training", "after training"))
    )
    cells = [["", *heads], *([spelt[k], *map(show, row.values())] for k, row in numbers.items())]
    return Rendered(_markdown(cells), _summary(numbers))


@form
def statistics_inline(run: Run, rng: random.Random) -> Rendered:
    numbers, spelt = _statistics(run, rng, ("mean", "max", "last")), names_of(run, rng)
    lines = [f"{spelt[k]}: " + ", ".join(f"{stat} {show(v)}" for stat, v in row.items()) for k, row in numbers.items()]
    return Rendered("\n".join(lines) + "\n", _summary(numbers))


@form
def statistics_a_line(run: Run, rng: random.Random) -> Rendered:
    numbers, spelt = _statistics(run, rng, ("max", "last")), names_of(run, rng)
    words = {"max": rng.choice(("max", "peak", "maximum")), "last": rng.choice(("final", "last"))}
    lines = [f"{words[stat]} {spelt[k]} = {show(v)}" for k, row in numbers.items() for stat, v in row.items()]
    return Rendered("\n".join(lines) + "\n", _summary(numbers))


@form
def pandas_describe(run: Run, rng: random.Random) -> Rendered:
    wanted = ("mean", "std", "min", "50%", "max")
    numbers, spelt = _statistics(run, rng, wanted), {k: v.replace(" ", "_") for k, v in names_of(run, rng).items()}
    cells = [["", *spelt.values()], *([stat, *(show(numbers[k][stat]) for k in spelt)] for stat in wanted)]
    cells.insert(1, ["count", *("100" for _ in spelt)])
    spread = {k: {s: v for s, v in row.items() if s in ("mean", "min", "max")} for k, row in numbers.items()}
    return Rendered(_aligned(cells), _summary(spread))


@form
def arrows(run: Run, rng: random.Random) -> Rendered:
    numbers, spelt = _statistics(run, rng, ("first", "last")), names_of(run, rng)
    sign = rng.choice((" -> ", " → ", " => "))
    lines = [f"{spelt[k]}: " + sign.join(map(show, row.values())) for k, row in numbers.items()]
    return Rendered("\n".join(lines) + "\n", _summary(numbers))


@form
def lists(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = ["steps: " + str([s for s, _ in run])]
    lines += [f"{spelt[k]}: [{', '.join(show(row[k]) for _, row in run)}]" for k in spelt]
    return Rendered("\n".join(lines) + "\n", plain(run))


@form
def tuples(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [f"{spelt[k]} = [" + ", ".join(f"({s}, {show(row[k])})" for s, row in run) + "]" for k in spelt]
    return Rendered("\n".join(lines) + "\n", plain(run))


@form
def yaml_blocks(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [line for s, row in run for line in (f"- step: {s}", *(f"  {spelt[k]}: {show(v)}" for k, v in row.items()))]
    return Rendered("\n".join(lines) + "\n", plain(run))


@form
def bullets(run: Run, rng: random.Random) -> Rendered:
    spelt = names_of(run, rng)
    lines = [
        line
        for s, row in run
        for line in (f"## Step {s}", *(f"- **{spelt[k]}**: {show(v)}" for k, v in row.items()), "")
    ]
    return Rendered("\n".join(lines) + "\n", plain(run))


SAID = (
    "{n} jumped to {v} at step {s}.",
    "At step {s}, {n} was {v}.",
    "{n} reached {v} by step {s}.",
    "{n} is about {v} around step {s}.",
)


@form
def prose(run: Run, rng: random.Random) -> Rendered:
    rendered = Rendered()
    for step, row in run:
        for name in rng.sample(sorted(row), min(2, len(row))):
            said = rng.choice(SAID).format(n=rng.choice(SPEECH[name]), v=show(row[name]), s=step)
            rendered.text += said[0].upper() + said[1:] + rng.choice((" ", "\n"))
            rendered.readings.append((name, float(step), row[name]))
    return rendered


@form
def prose_from_to(run: Run, rng: random.Random) -> Rendered:
    numbers, rendered = _statistics(run, rng, ("first", "last")), Rendered()
    for name, row in numbers.items():
        verb = rng.choice(("went", "moved", "drifted", "changed"))
        rendered.text += (
            f"{rng.choice(SPEECH[name])} {verb} from {show(row['first'])} to {show(row['last'])}"
            + rng.choice((". ", ".\n", ", and then "))
        )
    rendered.readings = _summary(numbers)
    return rendered


def _prefixed(run: Run, rng: random.Random, prefix: Callable[[int], str]) -> Rendered:
    style = rng.choice(("dict", "equals", "pipes", "colons"))
    if style == "dict":
        lines = _dicts(run, rng)
    elif style == "pipes":
        lines = pipes(run, rng).text.splitlines()
    else:
        lines = _pairs(run, rng, sign="=" if style == "equals" else ": ", gap=" " if style == "equals" else ", ")
    return Rendered("\n".join(prefix(i) + line for i, line in enumerate(lines)) + "\n", plain(run))


@form
def colours(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: "\x1b[36m(TaskRunner pid=123)\x1b[0m \x1b[1m")


@form
def ranks(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: rng.choice(("[rank0]: ", "[rank0]: ", "(rank 0) ", "[Rank 0] ")))


@form
def timestamps(run: Run, rng: random.Random) -> Rendered:
    head = rng.choice(
        (
            "2026-03-0{} 12:00:01,123 - INFO - trainer - ",
            "[2026-03-0{} 12:00:01] [INFO] [train.py:33:log] ",
            "INFO:root:",
            "INFO 03-0{} 12:00:01 trainer.py:12] ",
        )
    )
    return _prefixed(run, rng, lambda i: head.format(1 + i % 9))


@form
def compose(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: "trainer-1  | ")


@form
def kubernetes(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: f"2026-03-01T12:00:{i % 60:02d}.123456789Z stdout F ")


@form
def slurm(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: "0: ")


@form
def numbered(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: f"{i + 311:6d}\t")


@form
def grepped(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: f"train.log:{i + 311}:")


@form
def quoted(run: Run, rng: random.Random) -> Rendered:
    return _prefixed(run, rng, lambda i: "> ")


@form
def progress_bar(run: Run, rng: random.Random) -> Rendered:
    lines = _pairs(run, rng, gap=", ")
    bars = [
        f"{10 * i % 100:3d}%|##   | {s}/9999 [00:1{i % 10}<01:00, 1.2s/it, {line.split(', ', 1)[1]}]"
        for i, ((s, _), line) in enumerate(zip(run, lines, strict=True))
    ]
    return Rendered("\r".join(bars) + "\n", plain(run))


@form
def two_logs_in_one(run: Run, rng: random.Random) -> Rendered:
    shorter = draw(rng, 1)
    other = [(s, {k: _value(k, rng) for k in run[0][1]}) for s, _ in shorter]
    text = "first try:\n" + "\n".join(_dicts(other, rng)) + "\n\nsecond try, other trainer:\n"
    return Rendered(text + _markdown(_table(run, rng)), plain(run))


@form
def own_words(run: Run, rng: random.Random) -> Rendered:
    cells = _table(run, rng, OWN)
    return Rendered("\n".join(",".join(row) for row in cells) + "\n", plain(run))


@form
def own_words_as_pairs(run: Run, rng: random.Random) -> Rendered:
    table = {k: tuple(n for n in v if "(" not in n) for k, v in OWN.items()}
    return Rendered("\n".join(_pairs(run, rng, table)) + "\n", plain(run))


def halves() -> tuple[list[str], list[str]]:
    """Names of the forms that the reader was developed on, and of those held back: of two neighbours, a seeded coin."""
    coin, names = random.Random(20261123), list(FORMS)
    developed = [coin.choice(names[i : i + 2]) for i in range(0, len(names), 2)]
    return developed, [name for name in names if name not in developed]
