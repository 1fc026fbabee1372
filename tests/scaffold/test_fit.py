"""What init writes fits the GPU that is named: an adapter for large models, fewer tokens at once for small GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2Config

from levelhead.errors import InputError
from levelhead.preflight.plan_change import make_plan
from levelhead.recipe import load
from levelhead.scaffold.model import preset_folder
from levelhead.scaffold.write import InitOptions, plan
from night import by_night


def config(folder: Path, hidden: int, layers: int) -> str:
    """A folder with the config of a model and a tokenizer, and no weights."""
    shape = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        vocab_size=32_000,
    )
    shape.architectures = ["Qwen2ForCausalLM"]
    shape.save_pretrained(folder)
    AutoTokenizer.from_pretrained(preset_folder("base-tiny")).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {a} + {b}?", "answer": a + b} for a in range(12) for b in range(12)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "sums.jsonl"


@pytest.mark.parametrize(
    ("hidden", "layers", "gpu", "adapter"),
    [
        pytest.param(512, 4, "24GB", False, marks=by_night),
        (512, 2, "2.5GB", False),
        pytest.param(2048, 20, "80GB", True, marks=by_night),
        (8192, 2, "80GB", True),
        (8192, 2, "8GB", True),
    ],
)
def test_the_recipe_that_is_written_fits(
    hidden: int, layers: int, gpu: str, adapter: bool, data: str, tmp_path: Path
) -> None:
    model = config(tmp_path / "model", hidden, layers)
    made = plan(InitOptions("sums", model, data, gpu=gpu))
    made.write()
    recipe = load("sums.yaml")
    assert (recipe.model.lora is not None) == adapter
    assert recipe.grpo is not None
    assert recipe.grpo.optimizer.learning_rate == (1e-5 if adapter else 1e-6)
    again, _ = make_plan(recipe, gpu)
    assert again.fits
    assert f"a GPU of {gpu}" in made.memory
    assert made.memory in Path("sums.yaml").read_text()


def test_no_size_is_an_error_that_names_the_flag(data: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--gpu: 'much' is no size"):
        plan(InitOptions("sums", config(tmp_path / "model", 512, 4), data, gpu="much"))


def test_what_fits_nowhere_says_so(data: str, tmp_path: Path) -> None:
    made = plan(InitOptions("sums", config(tmp_path / "model", 8192, 2), data, gpu="2GB"))
    assert made.memory.startswith("does not fit: ")


@pytest.mark.parametrize(("rows", "size"), [(144, 8), (12, 16), (6, 32), (2, 64)])
def test_no_prompt_is_sampled_for_two_groups_of_a_step(rows: int, size: int, data: str, tmp_path: Path) -> None:
    few = Path(data).read_text(encoding="utf-8").splitlines(keepends=True)[:rows]
    Path("few.jsonl").write_text("".join(few), encoding="utf-8")
    plan(InitOptions("few", config(tmp_path / "model", 128, 1), "few.jsonl", gpu="24GB")).write()
    grpo = load("few.yaml").grpo
    assert grpo is not None
    assert (grpo.batch_size, grpo.group_size) == (64, size)
