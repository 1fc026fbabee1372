"""Write a run's policy as a folder that transformers loads, and push it to the Hugging Face Hub."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from levelhead.errors import InputError, first_line
from levelhead.export.card import card
from levelhead.export.older import write_for_older
from levelhead.message import Message
from levelhead.recipe import load
from levelhead.recipe.history import History
from levelhead.training.rundir import RunDir, publish

if TYPE_CHECKING:
    import torch

    from levelhead.policy.rounding import Visible
    from levelhead.recipe import Recipe

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
_NOT_SAVED = Message("{run}: no checkpoint has been saved yet", "{run}：还没有保存过检查点")
BEST = "best"
RECIPE = "levelhead_recipe.yaml"
"""Name of the recipe in an exported folder."""
HIDDEN = 0.9
"""Cosine of an adapter's change, as a type of the merged weights shows it, below which that type hides it."""


@dataclass(frozen=True, slots=True)
class Export:
    """What an export wrote, and what it was made from.

    Attributes:
        folder: Where it is.
        checkpoint: Name of the checkpoint that it came from.
        origin: Stage and step of the policy in it, in words.
        merged: Whether an adapter was merged into its base.
        adapter: Whether it is an adapter alone.
        precision: Of the scores and of the weights, in words; empty where nobody wrote down the first.
        url: Where it was pushed; empty where it was not.
    """

    folder: Path
    checkpoint: str
    origin: str
    merged: bool
    adapter: bool
    precision: str = ""
    url: str = ""


def export(
    run: Path, out: Path, *, merge: bool = False, checkpoint: str | None = None, dtype: Dtype = "auto"
) -> Export:
    """Write a run's model, tokenizer, chat template, generation config, model card and recipe; whole or not at all.

    Args:
        run: Folder of the run.
        out: Folder that is made; it must not be there, or be empty.
        merge: Merge an adapter into its base; weights that are whole are written as they are.
        checkpoint: ``best``, or ``step-000100``; the best one unless given, or the newest where none was kept.
        dtype: Type of the weights; that of the recipe's model unless given, float32 where it says ``auto``.

    Raises:
        InputError: The run, the checkpoint or the folder cannot be used.
    """
    from levelhead.training.checkpoint_files import origin, read_state

    history = History(run)
    if not run.is_dir() or history.newest is None:
        raise InputError(f"{run}: no run here (it has no recipe.yaml)")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is there already; choose another folder with --out")
    source = _checkpoint(run, checkpoint)
    recipe = load(run / history.newest)
    draft = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        adapter, precision = _write(run, recipe, source, draft, merge=merge, dtype=dtype)
        came_from = origin(read_state(source))
        text = card(run, source.name, came_from, _base(recipe), adapter=adapter, precision=precision)
        (draft / "README.md").write_text(text, encoding="utf-8")
        shutil.copyfile(run / history.newest, draft / RECIPE)
        if out.is_dir():
            out.rmdir()
        publish(draft, out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    merged = recipe.model.lora is not None and not adapter
    return Export(out, source.name, came_from, merged=merged, adapter=adapter, precision=precision)


def push(
    folder: Path,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Upload an exported folder to the hub, with the login of ``hf auth login`` or ``HF_TOKEN``.

    Args:
        folder: What :func:`export` wrote.
        name: ``NAME`` or ``OWNER/NAME``.
        private: Make the repository private where it is new.
        token: In place of the login.
        revision: Branch; the main one unless given.
        message: Of the commit.

    Returns:
        The repository's address.

    Raises:
        InputError: The hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=str(folder),
            revision=revision,
            commit_message=message or f"Export {folder.name} with Levelhead",
        )
    except Exception as error:  # which errors there are depends on the HTTP library of the day
        reason = first_line(error)
        raise InputError(
            f"--push {name}: {reason}\n{folder} is whole: log in with `hf auth login`, then `hf upload {name} {folder}`"
        ) from error
    return str(repository)


def _checkpoint(run: Path, name: str | None) -> Path:
    from levelhead.training.checkpoint import newest_checkpoint

    root = run / "checkpoints"
    if name is not None:
        if not (root / name).is_dir() or Path(name).name != name:
            there = sorted(path.name for path in root.glob("*") if path.name == BEST or path.name.startswith("step-"))
            raise InputError(
                f"--checkpoint {name}: {root} has none of that name; there are: {', '.join(there) or 'none'}"
            )
        return root / name
    newest = root / BEST if (root / BEST).is_dir() else newest_checkpoint(RunDir(run))
    if newest is None:
        raise InputError(_NOT_SAVED(run=run))
    return newest


def _write(run: Path, recipe: Recipe, source: Path, draft: Path, *, merge: bool, dtype: Dtype) -> tuple[bool, str]:
    """Write model and tokenizer; returns whether it is an adapter alone, and what is to be said of the precision."""
    import torch

    from levelhead.policy import four_bit
    from levelhead.policy.load import load_checkpoint
    from levelhead.policy.quiet import without_progress_bars
    from levelhead.policy.start import find_start

    below = () if recipe.model.preset == "tiny" else find_start(recipe.model).merged
    if below and recipe.model.lora is not None and not merge:
        raise InputError(
            f"export: the adapter was trained over another that is merged into its base ({below[-1].name}), which no "
            "reader of an adapter alone would merge; add --merge"
        )
    section = recipe.model.model_copy(update={"device": "cpu", "dtype": "float32"})
    whole = section
    if section.lora is not None:
        whole = section.model_copy(update={"lora": section.lora.model_copy(update={"load_in_4bit": False})})
    policy = load_checkpoint(whole, source, seed=recipe.seed)
    if merge and section.in_four_bits:  # what is merged is the policy that was trained
        four_bit.copy_unpacked(load_checkpoint(section, source, seed=recipe.seed).base, policy.base)
    scored = scored_in(run, recipe)
    own = recipe.model.dtype if recipe.model.lora is not None else scored
    written = next((name for name in (dtype, own) if name != "auto"), "float32")
    model: Any = policy.model
    adapter, hides = recipe.model.lora is not None, ""
    if adapter and merge:
        model, shown = _merged_as(model, getattr(torch, written))
        adapter = False
        if shown.cosine < HIDDEN:
            hides = f"{written} shows what the adapter changes in the merged weights with cosine {shown.cosine:.2f}"
            written = "float32" if dtype == "auto" else written
    model = model.to(getattr(torch, written))
    if (generation := getattr(model, "generation_config", None)) is not None:
        generation.eos_token_id = sorted(policy.codec.stop_ids)
    with without_progress_bars():
        model.save_pretrained(str(draft))
    policy.codec.save(draft)
    write_for_older(draft)
    return adapter, _precision(scored, written, hides)


def _merged_as(model: Any, kind: torch.dtype) -> tuple[Any, Visible]:
    """A model with its adapter merged, and what a type of its weights shows of what the adapter changes."""
    from levelhead.policy.lora import merged
    from levelhead.policy.rounding import some_entries, visible_change

    bases = [module.base_layer.weight for module in model.modules() if hasattr(module, "base_layer")]
    before = some_entries(bases)
    whole = merged(model)
    return whole, visible_change(before, some_entries(bases), [float(base.numel()) for base in bases], kind)


def _precision(scored: str, written: str, hides: str) -> str:
    """In which types the scores were computed and the weights are written, and what that does to them."""
    if scored == "auto":
        return ""
    lines = [f"Scores were computed with products in {scored}; the weights here are {written}."]
    if scored != written:
        lines.append(f"`levelhead eval` with `--set model.dtype={written}` scores them as they are here.")
    if hides:
        lines.append(f"{hides}." if written == "float32" else f"{hides}: this is not the policy that was scored.")
    return " ".join(lines)


def scored_in(run: Path, recipe: Recipe) -> str:
    """Return the type that a run's scores were computed in; ``auto`` where nobody wrote it down."""
    if recipe.model.dtype != "auto":
        return recipe.model.dtype
    try:
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        return str(environment["compute_dtype"])
    except (OSError, ValueError, LookupError, TypeError):
        return "auto"


def _base(recipe: Recipe) -> str | None:
    if recipe.model.preset is not None:
        return None if recipe.model.preset == "tiny" else f"Levelhead's {recipe.model.preset}"
    return recipe.model.name
