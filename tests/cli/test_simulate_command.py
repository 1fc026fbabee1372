"""``levelhead simulate`` as a user meets it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from levelhead.cli.simulate import simulate
from levelhead.errors import InputError

app = typer.Typer()
app.command("simulate")(simulate)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_default_is_a_table_for_three_chances():
    result = run()
    assert result.exit_code == 0
    for title in ("success 0.05, grpo", "success 0.5, grpo", "success 0.95, grpo"):
        assert title in result.stdout
    assert result.stdout.count("K = ") == 3


def test_the_table_fits_eighty_columns_and_holds_the_exact_numbers():
    table = run("--k", "2,64", "--success", "0.05").stdout.splitlines()[:5]
    assert max(len(line.rstrip()) for line in table) <= 80
    assert "…" not in "".join(table)
    assert table[3].split()[:5] == ["2", "90.2%", "0.3%", "90.5%", "4.1%"]


def test_json_prints_one_document_and_nothing_else(tmp_path):
    plot = tmp_path / "plot.html"
    result = run("-k", "2", "-k", "4", "-p", "0.5", "-e", "grpo,rloo", "--json", "--plot", str(plot))
    document = json.loads(result.stdout)
    assert [result["setup"]["estimator"] for result in document["results"]] == ["grpo", "rloo"]
    assert [row["k"] for row in document["results"][0]["rows"]] == [2, 4]
    assert document["results"][0]["rows"][1]["dead"] == 0.125
    assert plot.stat().st_size > 1000
    assert "plot.html" in result.stderr


def test_distributions_and_files_stand_beside_chances(tmp_path):
    (tmp_path / "rewards.txt").write_text("0 0 1")
    arguments = ("--distribution", "0=0.5,0.2=0.5", "--rewards", str(tmp_path / "rewards.txt"), "-p", "0.1", "--json")
    labels = [result["outcomes"]["label"] for result in json.loads(run(*arguments, "-k", "2").stdout)["results"]]
    assert labels == ["success 0.1", "rewards 0=0.5, 0.2=0.5", "rewards.txt"]


def test_estimator_options_reach_the_estimator():
    document = json.loads(run("-k", "8", "-p", "0.5", "-e", "pass_at_k", "--attempts", "2", "--json").stdout)
    assert document["results"][0]["setup"]["options"] == {"k": 2}
    clipped = json.loads(run("-k", "64", "-p", "0.05", "--clip", "2", "--json").stdout)
    assert clipped["results"][0]["rows"][0]["largest"] == 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--k", "1"), "got K=1"),
        (("--k", "two"), "--k: 'two' is not a whole number"),
        (("--success", "lots"), "--success: 'lots' is not a number"),
        (("--success", "1.5"), "between 0 and 1"),
        (("--estimator", "gpro"), "unknown advantage estimator"),
        (("--estimator", "gdpo"), "simulate knows grpo"),
        (("--estimator", "grpo", "--attempts", "2"), "takes no 'k'"),
        (("--estimator", "pass_at_k", "--k", "4"), "1 <= k < K"),
        (("--budget", "0"), "budget must be"),
        (("--rewards", "/no/such/file"), "/no/such/file"),
        (("--plot", "/no/such/folder/plot.html"), "--plot"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
