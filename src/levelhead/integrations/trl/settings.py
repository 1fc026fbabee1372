"""From TRL's settings to a recipe: what ``levelhead.trl`` rests on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.integrations.trl import sections
from levelhead.integrations.trl.sections import Asked, Clock
from levelhead.recipe.trainers import trl


def settings_of(args: Any) -> dict[str, Any]:
    """Return the settings that are not TRL's defaults, of TRL's own config or of ours.

    What TRL's config fills in by itself is no setting of the script: a config without arguments holds it too.

    Raises:
        InputError: It is no config.
    """
    if hasattr(args, "settings"):
        return dict(args.settings)
    if not is_dataclass(args) or isinstance(args, type):
        raise InputError(f"GRPOTrainer: args: a GRPOConfig is wanted, not {type(args).__name__}")
    config: Any = type(args)
    plain, names = config(use_cpu=True), trl()["config"]  # which can be made on any machine
    values = {f.name: getattr(args, f.name) for f in fields(args) if f.name in names and f.name != "use_cpu"}
    changed = {name: value for name, value in values.items() if value != getattr(plain, name)}
    return changed | ({"use_cpu": True} if getattr(args, "use_cpu", False) else {})


def refusals(part: str, settings: Mapping[str, Any]) -> list[str]:
    """Return a line with the way out for each of some settings that a run here would not keep.

    Args:
        part: ``config`` or ``trainer``.
        settings: By TRL's name.
    """
    table = trl()[part]
    lost = [(table[name], value) for name, value in settings.items() if not table[name].takes(value)]
    return [f"{setting.name}={sections.word(value):.60}: {setting.note}" for setting, value in lost]


def without_effect(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of those of some settings that change nothing here."""
    table = trl()["config"]
    return [name for name, value in settings.items() if table[name].kind == "fixed" and value != table[name].default]


def keys_of(settings: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Return the recipe as plain data.

    Args:
        settings: Those of TRL that differ from its defaults.
        asked: The model, adapter and rows.

    Raises:
        InputError: A setting has a value that no run here would keep; names it and the way out.
    """
    get = {name: setting.default for name, setting in trl()["config"].items()}
    get |= {"gradient_checkpointing": False, **{name: _read(value) for name, value in settings.items()}}
    if get["data_seed"] not in (None, get["seed"]):
        raise sections.refusal("data_seed", get, "one seed for all: set seed")
    groups, batch = sections.batch(get)
    clock = Clock(get, asked.rows, groups, batch["updates_per_batch"] * batch["epochs"])
    stage = {**batch, **clock.length(), **sections.objective(get)}
    stage["optimizer"] = sections.optimizer(get, clock)
    stage["sampling"] = sections.sampling(get)
    # TRL goes on where every reward returns None; such answers are dropped and counted.
    task: dict[str, Any] = {"kind": "function", "reward_weights": get["reward_weights"], "on_reward_error": "drop"}
    task |= sections.tools(get, asked)
    if asked.rows is None:
        task["limit"] = max(64, groups * int(stage["steps"]))
    label = get["run_name"] or (Path(get["output_dir"]).name if get["output_dir"] else "trl")
    return {
        "name": re.sub(r"^[.]+|[^A-Za-z0-9._-]+", "-", label)[:128] or "trl",
        "seed": int(get["seed"]),
        "model": sections.model(get, asked),
        "tasks": [task],
        "grpo": stage,
        "eval": sections.evaluation(get, settings, clock),
        "checkpoint": {"every": clock.every("save"), "keep_last": int(get["save_total_limit"] or 2)},
        "log": sections.logging(get, settings),
        **sections.generator(get, asked),
        **sections.processes(get, settings),
    }


def _read(value: Any) -> Any:
    """Return what a setting means that may be written as JSON, as on a command line."""
    return json.loads(value) if isinstance(value, str) and value.lstrip().startswith(("{", "[")) else value
