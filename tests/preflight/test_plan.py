"""The plan of a run's memory: held against a measured run, part by part, and over the recipes that ship."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead.errors import InputError
from levelhead.policy.footprint import Footprints
from levelhead.preflight.memory_plan import MemoryPlan, Prompts, Target, longest_prompt, read_size
from levelhead.preflight.plan_change import changed, first_change, make_plan
from levelhead.preflight.planner import Planner
from levelhead.recipe import Recipe, load
from levelhead.recipe.training import Optimizer
from levelhead.training.optim import Updater
from night import by_night

ROOT = Path(__file__).parents[2]
TINY = {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 160, "vocab_size": 512}
LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def recipe(model: dict[str, Any] | None = None, **grpo: Any) -> Recipe:
    section = {"batch_size": 16, "group_size": 4, "sampling": {"max_new_tokens": 16}, "audit": {"first": 0}, **grpo}
    return Recipe.model_validate(
        {
            "model": model or {"preset": "tiny", "tiny": TINY, "dtype": "float32"},
            "tasks": [{"kind": "workflow", "items": 40, "executor": {"kind": "simulated"}}],
            "grpo": section,
            "eval": {"batch_size": 1, "items": 1, "final_items": 1, "sampling": {"max_new_tokens": 1}},
        }
    )


@cache
def planner(device: str = "cpu", room: int | None = None, prompt: int = 64) -> Planner:
    compute = torch.float32 if device == "cpu" else torch.bfloat16
    return Planner(Target(device, compute, room, device), Prompts(prompt, "given"))


def part(plan: MemoryPlan, name: str) -> int:
    return next((p.size for p in plan.parts if p.name == name), 0)


def lora(**changes: Any) -> dict[str, Any]:
    return {"preset": "tiny", "tiny": TINY, "dtype": "float32", "lora": {"r": 4}, **changes}


def bench() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        spec = importlib.util.spec_from_file_location("bench_plan", ROOT / "bench" / "plan.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_plan"] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "bench"))


@pytest.mark.parametrize("name", ["0.5M", "0.5M lora"])
def test_the_plan_is_within_a_tenth_of_the_measured_peaks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = bench()
    case = module.CASES[name]
    module.workloads.write(case.work, tmp_path)
    earlier = [torch.zeros(10 << 18)]  # as much as the policy of a test before this one, in a cycle
    earlier.append(earlier)  # type: ignore[arg-type]
    del earlier
    from speedlib import ours

    load = ours.load
    monkeypatch.setattr(ours, "load", lambda *given: (gc.collect(), load(*given))[1])
    plan, peaks = module.planned(case, tmp_path), module.measured(case, tmp_path)
    runtime = part(plan, "runtime")
    for phase in ("update", "sampling"):
        assert plan.phases[phase] - runtime == pytest.approx(peaks[phase], rel=0.1), phase


def test_weights_gradients_and_moments_are_those_of_the_parameters() -> None:
    plan = planner().plan(recipe())
    assert plan.parameters == plan.trained
    assert part(plan, "gradients") == 4 * plan.trained
    assert part(plan, "optimizer") == 8 * plan.trained
    assert part(plan, "weights") == pytest.approx(4 * plan.parameters, rel=0.01)


def test_moments_of_eight_bits_are_planned_as_bitsandbytes_lays_them_out() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    policy = Footprints(recipe().model, "cpu", torch.float32).policy
    weights = [torch.nn.Parameter(torch.zeros(weight.shape)) for weight in policy.parameters]
    updater = Updater(weights, Optimizer(kind="adamw_8bit"), 1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    updater.step()
    moments = [
        s[k] for s in updater.optimizer.state.values() for k in ("state1", "state2", "absmax1", "absmax2") if k in s
    ]
    plan = planner().plan(recipe(optimizer={"kind": "adamw_8bit"}))
    assert part(plan, "optimizer") == sum(m.numel() * m.element_size() for m in moments)


def test_lora_has_gradients_and_moments_of_the_adapter_alone_and_needs_no_copy_as_reference() -> None:
    full, adapter = planner().plan(recipe(kl={"coef": 0.1})), planner().plan(recipe(lora(), kl={"coef": 0.1}))
    assert adapter.trained < full.trained / 5
    assert part(adapter, "optimizer") == 8 * adapter.trained
    assert part(full, "reference") == 4 * full.parameters
    assert part(adapter, "reference") == 0


def test_no_leash_no_reference() -> None:
    assert part(planner().plan(recipe()), "reference") == 0


def test_a_micro_batch_of_twice_the_tokens_takes_twice_the_activations() -> None:
    one = planner().plan(recipe(batch_size=256, tokens_per_microbatch=992))
    two = planner().plan(recipe(batch_size=256, tokens_per_microbatch=1984))
    assert part(two, "activations") == pytest.approx(2 * part(one, "activations"), rel=0.1)


def test_a_batch_beyond_one_micro_batch_takes_no_more() -> None:
    some = planner().plan(recipe(batch_size=64, tokens_per_microbatch=992))
    more = planner().plan(recipe(batch_size=256, tokens_per_microbatch=992))
    assert part(more, "activations") == part(some, "activations")


@pytest.mark.parametrize("model", [None, lora()])
def test_checkpointing_takes_less_and_both_sizes_are_said(model: dict[str, Any] | None) -> None:
    plain = recipe(model, batch_size=64)
    plan = planner().plan(plain, compare=True)
    assert plan.activations["with checkpointing"] < 0.8 * plan.activations["without checkpointing"]
    less = planner().plan(changed(plain, {"model.gradient_checkpointing": True}))
    assert part(less, "activations") + part(less, "logits") == plan.activations["with checkpointing"]


def test_keys_and_values_grow_with_prompt_and_budget() -> None:
    cache = part(planner().plan(recipe()), "keys and values")
    head = 64 // 4
    shared, own = 4 * 64, 16 * 16  # a prompt's once a group; a row's own budget
    assert cache == 2 * 2 * 2 * head * 4 * (shared + own)
    assert part(planner(prompt=128).plan(recipe()), "keys and values") > cache


def test_on_a_gpu_a_group_has_the_keys_and_values_of_its_prompt_once_unless_another_backend_is_named() -> None:
    model = {"preset": "tiny", "tiny": TINY, "dtype": "bfloat16"}
    a_token = 2 * 2 * 2 * 16 * 2
    plan = planner("cuda").plan(recipe(model))
    assert part(plan, "keys and values") == a_token * (4 * 64 + 16 * 16)
    named = planner("cuda").plan(recipe({**model, "backend": "sdpa"}))
    assert part(named, "keys and values") == a_token * 16 * (64 + 16)


def test_drawing_ahead_takes_a_copy_and_adds_sampling_to_the_update() -> None:
    one, ahead = planner().plan(recipe()), planner().plan(recipe(**{"async": 1}))
    assert part(ahead, "drawing ahead") >= 4 * one.trained
    assert ahead.phases["update"] > one.phases["update"] + part(one, "keys and values")


def test_a_server_on_the_same_gpu_takes_its_share_and_gives_most_of_it_up_in_its_sleep() -> None:
    room = 10 << 30
    keys = {"kind": "vllm", "urls": ["http://127.0.0.1:1"], "shared": "shared", "gpu_share": 0.4}
    base = recipe(loss={"importance": "token_truncate"})
    plans = {
        sleep: planner("cuda", room).plan(
            Recipe.model_validate({**base.model_dump(by_alias=True), "generator": {**keys, "sleep": sleep}})
        )
        for sleep in (False, True)
    }
    assert part(plans[False], "vLLM server") == part(plans[True], "vLLM server") == int(0.4 * room)
    assert plans[False].phases["update"] - plans[True].phases["update"] > 0.2 * room
    assert plans[False].phases["sampling"] == plans[True].phases["sampling"]
    assert not part(plans[False], "keys and values")


def served(**changes: Any) -> Recipe:
    """A recipe with a reference, drawn by servers, whose processes divide the weights."""
    loss = {"importance": "token_truncate"}
    base = recipe(loss=loss, kl={"coef": 0.1}, batch_size=64, tokens_per_microbatch=128, **{"async": 1})
    generator = {"kind": "vllm", "urls": ["http://127.0.0.1:1"], "shared": "shared"}
    settled = {"generator": generator, "distributed": {"shard": "full"}, "check": False, "guard": {"policy": "protect"}}
    return Recipe.model_validate({**base.model_dump(by_alias=True), **settled, **changes})


def among(processes: int) -> Planner:
    return Planner(Target("cpu", torch.float32, None, "cpu"), Prompts(64, "given"), processes)


def test_processes_that_divide_the_weights_hold_a_share_of_all_that_grows_with_them() -> None:
    one, four = among(1).plan(served()), among(4).plan(served())
    for name in ("weights", "gradients", "optimizer", "reference", "guard"):
        assert part(four, name) == pytest.approx(part(one, name) / 4, rel=1e-4), name
    for name in ("activations", "logits", "runtime"):
        assert part(four, name) > 0, name
    guarded = part(four, "gradients")
    assert part(four, "drawing ahead") == guarded, "those to go back to; for servers there is no copy beside them"
    assert part(one, "drawing ahead") == 2 * part(one, "gradients")
    assert part(four, "activations") == part(one, "activations")
    assert (four.parameters, four.trained, four.processes) == (one.parameters, one.trained, 4)
    assert four.total < one.total


def test_layers_at_work_are_whole_and_more_layers_make_them_no_larger() -> None:
    deep = {"preset": "tiny", "tiny": {**TINY, "layers": 8}, "dtype": "float32"}
    shallow, plan = among(4).plan(served()), among(4).plan(served(model=deep))
    assert part(plan, "weights") > 2 * part(shallow, "weights")
    assert part(plan, "layers at work") == part(shallow, "layers at work") > 0


def test_a_process_that_draws_holds_the_weights_whole_as_well() -> None:
    asked = served()
    local = changed(asked, {"generator": {"kind": "local"}})
    whole = part(among(1).plan(asked), "weights")
    assert part(among(4).plan(local), "weights (to draw)") == whole
    assert part(among(4).plan(asked), "weights (to draw)") == 0


def test_the_preflight_of_the_first_process_is_a_phase_of_its_own_where_weights_are_divided() -> None:
    heavy = {"preset": "tiny", "tiny": {**TINY, "layers": 24, "intermediate_size": 4096}, "dtype": "float32"}
    plain = changed(served(model=heavy), {"grpo.tokens_per_microbatch": 64, "grpo.async": 0})
    asked = changed(plain, {"check": True})
    plan, without = among(16).plan(asked), among(16).plan(plain)
    assert (plan.peak, without.peak) == ("preflight", "update")
    assert part(plan, "preflight") > part(among(1).plan(plain), "weights")
    small = Planner(Target("cpu", torch.float32, (plan.total + without.total) // 2, "small"), Prompts(64, "given"), 16)
    change = first_change(small, asked, small.plan(asked))
    assert change is not None
    assert (change.settings, change.fits) == ({"check": False}, True)


def test_without_division_several_processes_divide_the_groups_and_nothing_else() -> None:
    asked = changed(served(), {"distributed": {"shard": "none"}, "generator": {"kind": "local"}})
    one, four = among(1).plan(asked), among(4).plan(asked)
    drawn = ("keys and values", "logits (sampling)", "reading prompts")
    assert [p for p in four.parts if p.name not in drawn] == [p for p in one.parts if p.name not in drawn]
    assert part(four, "keys and values") == part(one, "keys and values") / 4


def test_guard_audit_and_merging_hold_copies() -> None:
    plain = recipe()
    trained = 4 * planner().plan(plain).trained
    assert part(planner().plan(plain), "guard") == 2 * trained
    unguarded = planner().plan(changed(plain, {"guard": {"policy": "observe"}}))
    assert part(unguarded, "guard") == 0
    assert part(planner().plan(recipe(audit={"first": 1})), "audit") == 2 * trained  # the reward, the entropy
    assert part(planner().plan(recipe(merge={"kind": "cagrad"})), "gradients") == 2 * trained


def test_a_plan_that_fits_proposes_nothing() -> None:
    roomy = planner(room=64 << 30)
    assert first_change(roomy, recipe(), roomy.plan(recipe())) is None


def test_the_first_setting_to_change_fits_and_twice_its_value_would_not() -> None:
    asked = recipe(batch_size=256)
    total = planner().plan(asked).total
    tight = Planner(Target("cpu", torch.float32, int(0.97 * total), "small"), Prompts(64, "given"))
    change = first_change(tight, asked, tight.plan(asked))
    assert change is not None
    assert change.fits
    ((key, value),) = change.settings.items()
    assert key == "grpo.tokens_per_microbatch"
    assert tight.plan(changed(asked, {key: value})).fits
    assert not tight.plan(changed(asked, {key: 2 * value})).fits


def test_several_settings_are_named_where_one_is_not_enough() -> None:
    asked = recipe({"preset": "tiny", "tiny": {**TINY, "vocab_size": 60000}, "dtype": "float32"}, batch_size=64)
    singles: list[dict[str, Any]] = [
        {"model.lora": {"r": 16, "alpha": 32}},
        {"grpo.tokens_per_microbatch": 64},
        {"model.gradient_checkpointing": True},
        {"grpo.sampling.rows_at_once": 4},
    ]
    alone = min(planner().plan(changed(asked, settings)).total for settings in singles)
    together = planner().plan(changed(asked, {key: value for one in singles for key, value in one.items()})).total
    assert together < alone
    small = Planner(Target("cpu", torch.float32, (together + alone) // 2, "small"), Prompts(64, "given"))
    change = first_change(small, asked, small.plan(asked))
    assert change is not None
    assert change.fits
    assert len(change.settings) > 1
    assert small.plan(changed(asked, change.settings)).total == change.total


def test_nothing_makes_weights_fit_that_are_larger_than_the_memory() -> None:
    small = Planner(Target("cpu", torch.float32, 1 << 20, "small"), Prompts(64, "given"))
    change = first_change(small, recipe(), small.plan(recipe()))
    assert change is None or not change.fits


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("79.6GiB", int(79.6 * 2**30)), ("24 gb", 24 * 10**9), ("512MiB", 512 << 20)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["80XB", "GB", "", "0GB", "80", "-1GB", "nanGB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--gpu"):
        read_size(text)


WARNINGS = ("browser-deadlock", "dual-constant", "workflow-collapse")
"""Recipes to be watched and not to be copied, on tasks that others have too."""
SHIPPED = [
    pytest.param(path, id=path.stem, marks=by_night if path.stem in WARNINGS else [])
    for path in sorted((ROOT / "recipes").glob("*.yaml"))
    if load(path).model.preset is not None
]


@pytest.mark.parametrize("path", SHIPPED)
def test_every_recipe_without_a_hub_model_has_a_plan(path: Path) -> None:
    plan, _ = make_plan(load(path), "80GB", 200)
    assert plan.fits
    assert plan.to_json()["status"] == "fits"


@pytest.mark.slow
def test_llama_3_8b_is_16_gb_of_weights_that_are_never_allocated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")
    asked = load(ROOT / "recipes" / "dual-llama3-8b.yaml", [f"model.name={tmp_path}"])
    plan, _ = make_plan(asked, "80GB", 1024)
    assert part(plan, "weights") == pytest.approx(16.06e9, rel=0.01)
    assert plan.parameters == pytest.approx(8.05e9, rel=0.01)
    assert plan.fits
    assert plan.total > 20e9


def test_a_model_whose_config_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = recipe({"name": "nobody/no-such-model"})
    with pytest.raises(InputError, match=r"config\.json") as error:
        make_plan(asked, "80GB", 100)
    assert "\n" not in str(error.value)


def test_prompts_are_measured_where_the_tasks_are_there() -> None:
    prompts = longest_prompt(load(ROOT / "recipes" / "dual-tiny.yaml"))
    assert 20 < prompts.tokens < 1000
    assert "longest" in prompts.source


def test_prompts_are_assumed_where_data_are_missing() -> None:
    assert "assumed" in longest_prompt(load(ROOT / "recipes" / "dual-bbq-halueval.yaml")).source


def test_groups_become_smaller_where_one_is_too_large_to_be_sampled_at_once() -> None:
    adapted = {"model.lora": {"r": 16, "alpha": 32}, "grpo.tokens_per_microbatch": 64}
    large = recipe(batch_size=256, group_size=256, sampling={"max_new_tokens": 1024})
    asked = changed(large, {**adapted, "model.gradient_checkpointing": True})
    halved = {"grpo.group_size": 128, "grpo.sampling.rows_at_once": 128}
    whole, half = planner().plan(asked), planner().plan(changed(asked, halved))
    assert whole.peak == "sampling"
    tight = Planner(Target("cpu", torch.float32, (whole.total + half.total) // 2, "small"), Prompts(64, "given"))
    change = first_change(tight, asked, tight.plan(asked))
    assert change is not None
    assert (change.settings, change.fits) == (halved, True)
    all_of_them = changed(asked, {"grpo.advantage": {"kind": "pass_at_k", "k": 255}})
    other = first_change(tight, all_of_them, tight.plan(all_of_them))
    assert other is None or "grpo.group_size" not in other.settings  # the estimator compares as many
