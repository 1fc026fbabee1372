"""``levelhead simulate``: what a group size and an estimator do to advantages, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.lab.outcomes import Outcomes
    from levelhead.lab.simulate import Result, Row

SUCCESS = (0.05, 0.5, 0.95)
"""Chances of success where none are given."""
HEADERS = (
    "K", "all\nfailed", "all\nsolved", "groups\ndead", "steps\ndead", "groups\nlive", "A\n5%", "A\n50%", "A\n95%",
    "max\n|A|", "signal\n/1k tok", "effi-\nciency", "group\nworth",
)  # fmt: skip
"""Columns of the table; docs/simulate.md says what they are."""


def simulate(
    k: Annotated[
        list[str] | None, typer.Option("--k", "-k", help="Group sizes, repeated or with commas.  [2,4,8,16,64]")
    ] = None,
    success: Annotated[
        list[str] | None,
        typer.Option("--success", "-p", help="Chances of success, repeated or with commas.  [0.05,0.5,0.95]"),
    ] = None,
    distribution: Annotated[
        list[str] | None, typer.Option(help="Rewards and their probabilities, as 0=0.5,0.2=0.3,1=0.2.")
    ] = None,
    rewards: Annotated[
        list[Path] | None, typer.Option(help="File of measured rewards: .json, .jsonl, or plain numbers.")
    ] = None,
    estimator: Annotated[list[str] | None, typer.Option("--estimator", "-e", help="Estimators.  [grpo]")] = None,
    ddof: Annotated[int, typer.Option(help="Standard deviation: 1 sample, 0 population.")] = 1,
    eps: Annotated[float, typer.Option(help="Added to the standard deviation.")] = 1e-4,
    clip: Annotated[float | None, typer.Option(help="Bound on the absolute advantage.")] = None,
    attempts: Annotated[int | None, typer.Option(help="k of the estimators pass_at_k and pkpo.")] = None,
    tokens: Annotated[float, typer.Option(help="Mean completion tokens of a rollout.")] = 512,
    length_cv: Annotated[float, typer.Option(help="Spread of lengths over their mean, for opo.")] = 0.5,
    budget: Annotated[float | None, typer.Option(help="Completion tokens a step.  [64 rollouts]")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn instead of enumerated.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Also write a plot to this HTML file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Say what a group size and an estimator do to advantages.

    For a chance of success or a distribution of rewards: how many groups teach nothing, how advantages are spread,
    what a rollout is worth, and which group size the budget should use.  Needs no torch.
    """
    from levelhead.lab import simulate as lab

    try:
        results = [
            lab.simulate(
                outcomes,
                [_whole("--k", size) for size in _split(k or ["2,4,8,16,64"])],
                lab.Setup(
                    estimator=name, ddof=ddof, eps=eps, clip=clip, tokens=tokens, length_cv=length_cv, seed=seed,
                    options={} if attempts is None else {"k": attempts},
                    budget=64 * tokens if budget is None else budget,
                ),
            )
            for outcomes in _outcomes(success, distribution, rewards)
            for name in _split(estimator or ["grpo"])
        ]  # fmt: skip
    except ValueError as error:
        raise InputError(str(error)) from None
    if plot is not None:
        _write_plot(results, plot)
    if as_json:
        say_json({"results": [result.to_json() for result in results]}, indent=2)
    else:
        _print(results)


def _outcomes(success: list[str] | None, distribution: list[str] | None, rewards: list[Path] | None) -> list[Outcomes]:
    from levelhead.lab.outcomes import bernoulli, parse_distribution, read_rewards

    chances = [_number("--success", text) for text in _split(success or [])]
    if not (chances or distribution or rewards):
        chances = list(SUCCESS)
    return [
        *(bernoulli(chance) for chance in chances),
        *(parse_distribution(text) for text in distribution or []),
        *(read_rewards(path) for path in rewards or []),
    ]


def _split(texts: list[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a number") from None


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a whole number") from None


def _write_plot(results: Sequence[Result], path: Path) -> None:
    from levelhead.lab.simulate_plot import write_plot

    try:
        write_plot(results, path)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot be written ({error.strerror or error})") from None
    say(f"plot: {path}", error=True)


def _print(results: Sequence[Result]) -> None:
    from rich.table import Table

    from levelhead.terminal.console import SafeConsole

    console = SafeConsole(soft_wrap=True)
    for result in results:
        setup = result.setup
        title = f"{result.outcomes.label}, {setup.estimator}, {setup.budget:,.0f} tokens a step"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for header in HEADERS:
            table.add_column(header, justify="right", no_wrap=True)
        for row in result.rows:
            table.add_row(*_cells(row), style="bold" if row.k == result.recommended_k else None)
        console.print(table)
        console.print(f"K = {result.recommended_k}: {result.reason}\n", highlight=False)


def _cells(row: Row) -> list[str]:
    shares = (row.all_failed, row.all_solved, row.dead, row.dead_step)
    low, median, high = row.quantiles[0], row.quantiles[len(row.quantiles) // 2], row.quantiles[-1]
    return [
        str(row.k),
        *(f"{share:.1%}" for share in shares),
        f"{row.live_groups:.1f}",
        *(f"{value:.2f}" for value in (low, median, high, row.largest)),
        f"{row.signal_per_1k_tokens:.3f}",
        f"{row.efficiency:.3f}",
        ("" if row.exact else "~") + f"{row.effective_samples:.2f}",
    ]
