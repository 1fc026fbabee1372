"""Variants: a recipe's keys are those of the registered classes, and a class of the user's own trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field, TypeAdapter

from levelhead.cli.main import main
from levelhead.errors import InputError
from levelhead.objective.advantages import ADVANTAGES
from levelhead.objective.aggregation import AGGREGATORS
from levelhead.objective.losses import LOSSES, Loss, Surrogate, policy_loss
from levelhead.objective.registry import registry
from levelhead.recipe import Recipe, dump, parse, validate
from levelhead.recipe.objective import CustomLoss, LossSection
from levelhead.recipe.variants import as_sections, one_of
from oracle.textbook import UnprovedError
from oracle.textbook.estimators import estimate
from oracle.textbook.surrogates import rises
from small_run import recipe

MINE = """
from pydantic import Field, TypeAdapter

from levelhead.objective.advantages import Advantages, Estimator
from levelhead.objective.losses import Loss, Surrogate


class MyLoss(Loss):
    strength: float = Field(1.0, gt=0)

    def surrogate(self, inputs):
        return Surrogate(self.strength * inputs.advantages_nt * inputs.logp_nt)


class MyEstimator(Estimator):
    needs = frozenset({"lengths_gk"})
    pull: float = 1.0

    @property
    def min_group_size(self):
        return 3

    def estimate(self, batch):
        centred_gk = batch.rewards_gk - batch.rewards_gk.mean(axis=1, keepdims=True)
        assert batch.lengths_gk.shape == centred_gk.shape
        return Advantages(self.pull * centred_gk, centred_gk.any(axis=1))


def no_class():
    pass
"""
SMALL = {"sft": None, "eval__final_items": 2, "grpo__steps": 2, "grpo__audit__first": 0, "eval__constant": False}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    return path


def custom(path: Path, name: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "custom", "path": f"{path}:{name}", "settings": settings}


def read(**grpo: Any) -> Recipe:
    return validate({"model": {"preset": "tiny"}, "tasks": [{"kind": "math"}], "grpo": grpo})


class Added(Loss):
    """A loss that somebody adds: a class with one knob."""

    name: ClassVar[str] = "added"
    warmth: float = Field(0.5, ge=0)
    """How warm."""

    def surrogate(self, inputs: Any) -> Surrogate:
        return Surrogate(self.warmth * inputs.logp_nt)


class Whole(Added):
    def surrogate(self, inputs: Any) -> Surrogate:
        return Surrogate(inputs.logp_nt.sum())


def test_a_registered_loss_is_a_kind_with_its_knob_as_a_key() -> None:
    sections = as_sections({**LOSSES, "added": Added}, "ppo_clip", LossSection)
    loss: Any = TypeAdapter(one_of(sections.values(), CustomLoss, "ppo_clip"))
    assert sections["added"].model_fields["warmth"].default == 0.5
    made = loss.validate_python({"kind": "added", "warmth": 2, "top_entropy": 0.5})
    assert made.settings_of(Added) == {"warmth": 2.0}
    assert loss.validate_python({}).kind == "ppo_clip"
    with pytest.raises(ValueError, match="warmth"):
        loss.validate_python({"kind": "added", "warmth": -1.0})
    with pytest.raises(ValueError, match="is a key of kind added, and none of ppo_clip"):
        loss.validate_python({"warmth": 2.0})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"loss": {"kind": "reinforce", "clip_low": 0.1}}, r"grpo\.loss\.clip_low: is a key of kind ppo_clip, gspo"),
        (
            {"loss": {"dual_clip": 3.0, "kind": "sapo"}},
            r"grpo\.loss\.dual_clip: is a key of kind ppo_clip, clip_cov, and none of",
        ),
        ({"advantage": {"kind": "rloo", "k": 4}}, r"grpo\.advantage\.k: is a key of kind pass_at_k, pkpo, and none of"),
        ({"advantage": {"weights": {"a": 1.0}}}, r"grpo\.advantage\.weights: is a key of kind gdpo, and none of grpo"),
        ({"merge": {"kind": "pcgrad", "c": 0.1}}, r"grpo\.merge\.c: is a key of kind cagrad, and none of pcgrad"),
        ({"merge": {"c": 0.1}}, r"merge\.c is a key of kind cagrad, and none of sum without switch_after"),
        ({"kl": {"coef": 0.1, "controller": {"low": 0.1}}}, r"grpo\.kl\.controller\.kind: missing"),
        ({"kl": {"controller": {"kind": "fixed", "low": 0.1}}}, r"controller\.low: is a key of kind band"),
        ({"loss": {"kind": "ppo"}}, r"grpo\.loss\.kind: must be one of 'ppo_clip', .*'custom', got 'ppo'"),
        ({"loss": {"clip_hihg": 0.1}}, r"unknown key 'grpo\.loss\.clip_hihg'; did you mean 'grpo\.loss\.clip_high'"),
    ],
)
def test_a_key_of_another_kind_is_an_error_that_says_whose_it_is(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(**keys)


def test_recipes_that_earlier_versions_wrote_out_are_read() -> None:
    # They have the keys of all kinds: losses and aggregators at their defaults, estimators null.
    kinds = {"loss": LOSSES, "merge": AGGREGATORS, "advantage": ADVANTAGES}
    for section, variants in kinds.items():
        everything: dict[str, Any] = {}
        for key, field in ((key, field) for one in variants.values() for key, field in one.model_fields.items()):
            everything[key] = field.default if everything.get(key, field.default) == field.default else None
        if section == "advantage":
            everything = dict.fromkeys(everything) | {"ddof": 1, "eps": 1e-4}
        for kind, variant in variants.items():
            own = {key: 2 for key, field in variant.model_fields.items() if field.is_required()}
            made = read(**{section: {**everything, "kind": kind, **own}}).grpo
            loss = getattr(made, section).make()
            assert isinstance(loss, variant)
            assert {key: getattr(loss, key) for key in variant.model_fields} == dict(variant(**own))


def test_no_source_is_searched_for_a_section_that_has_no_class_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Any] = []
    monkeypatch.setattr("inspect.getmodule", searches.append)
    section = as_sections(LOSSES, "ppo_clip", LossSection)["ppo_clip"]
    assert not searches
    assert section.model_fields["clip_low"].description


def test_an_entry_that_is_no_variant_is_refused() -> None:
    with pytest.raises(TypeError, match="inputs:Inputs is no Loss"):
        registry("levelhead.objective.losses", Loss, ["inputs:Inputs"])


def test_a_loss_trains_by_its_own_config_and_takes_changes() -> None:
    x = torch.zeros(1, 2, requires_grad=True)
    batch = (x, x.detach(), torch.ones(1), torch.ones(1, 2))
    policy_loss(Added(warmth=3.0), *batch).surrogate_nt.sum().backward()
    assert x.grad.tolist() == [[3.0, 3.0]]
    policy_loss(Added(), *batch, warmth=4.0).surrogate_nt.sum().backward()
    assert x.grad.tolist() == [[7.0, 7.0]]


def test_a_surrogate_of_another_shape_is_refused() -> None:
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"a surrogate needs shape \(1, 2\), got \(\)"):
        policy_loss(Whole(), x, x, torch.ones(1), torch.ones(1, 2))


def test_classes_of_ones_own_train_and_go_on(tmp_path: Path, mine: Path) -> None:
    from levelhead.api import train

    run = tmp_path / "run"
    changes = {"grpo__loss": custom(mine, "MyLoss", strength=0.5), "grpo__advantage": custom(mine, "MyEstimator")}
    given = validate(recipe(tmp_path, **{**SMALL, **changes}))
    train(given, out=run, check=False)
    written = parse((run / "recipe.yaml").read_text(encoding="utf-8"))
    assert written == given
    assert (written.grpo.loss.kind, written.grpo.loss.settings) == ("custom", {"strength": 0.5})
    assert len((run / "metrics.jsonl").read_text().splitlines()) >= 2
    train(given, out=run, check=False, resume=True)


def test_a_recipe_with_a_class_of_ones_own_is_read_where_the_file_is_not() -> None:
    there = read(loss=custom(Path("/nowhere/mine.py"), "MyLoss"), advantage=custom(Path("gone.py"), "E"))
    assert parse(dump(there)) == there


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("loss", {"path": "{mine}:MyLos"}, r"mine.py: there is no class 'MyLos'; it defines: MyLoss, MyEstimator"),
        ("loss", {"path": "{mine}:no_class"}, r"must be a class that derives from .*Loss \(grpo.loss.path\)"),
        ("loss", {"path": "{mine}:MyEstimator"}, r"must be a class that derives from .*Loss \(grpo.loss.path\)"),
        ("loss", {"path": "mine"}, r"grpo.loss.path: 'mine' must read file.py:name"),
        ("loss", {"path": "absent.py:MyLoss"}, r"absent.py: no such file \(grpo.loss.path, seen from"),
        ("loss", {"settings": {"strength": 0}}, r"mine.py:MyLoss: grpo.loss.settings.strength must be above 0, got 0"),
        ("loss", {"settings": {"strenth": 1}}, r"no setting 'grpo.loss.settings.strenth'; it takes strength"),
        ("advantage", {"settings": {"pull": "x"}}, r"grpo.advantage.settings.pull: .*number"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line_with_file_and_key(
    mine: Path, section: str, change: dict[str, Any], message: str
) -> None:
    change = {key: value.format(mine=mine) if isinstance(value, str) else value for key, value in change.items()}
    asked = {**custom(mine, "MyLoss" if section == "loss" else "MyEstimator"), **change}
    with pytest.raises(InputError, match=message) as caught:
        read(**{section: asked}).grpo.check_variants()
    assert "\n" not in str(caught.value)


def test_keys_of_registered_kinds_are_no_keys_of_a_class_of_ones_own(mine: Path) -> None:
    with pytest.raises(InputError, match=r"unknown key 'grpo.loss.clip_low'"):
        read(loss={**custom(mine, "MyLoss"), "clip_low": 0.1})


def test_the_command_ends_with_2(
    tmp_path: Path, mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recipe(tmp_path, **SMALL, grpo__loss=custom(mine, "Absent"))
    file = tmp_path / "recipe.yaml"
    file.write_text(dump(validate(given)), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["levelhead", "train", str(file), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "there is no class 'Absent'" in capsys.readouterr().err


def test_a_group_that_is_too_small_for_a_class_of_ones_own_is_told(mine: Path) -> None:
    with pytest.raises(ValueError, match="needs a group_size of at least 3, got 2; set group_size higher"):
        read(advantage=custom(mine, "MyEstimator"), group_size=2, batch_size=4).grpo.check_variants()


def test_the_textbook_has_no_page_for_classes_of_ones_own(mine: Path) -> None:
    grpo = read(loss=custom(mine, "MyLoss"), advantage=custom(mine, "MyEstimator")).grpo
    with pytest.raises(UnprovedError, match=r"grpo.advantage.kind: custom"):
        estimate(grpo.advantage, [[0.0, 1.0]], [])
    with pytest.raises(UnprovedError, match=r"grpo.loss.kind: custom"):
        rises(grpo.loss, [], [])
