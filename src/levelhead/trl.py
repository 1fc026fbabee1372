"""TRL's ``GRPOConfig`` and ``GRPOTrainer`` by their names, trained by Levelhead: one import of a script changes.

    from levelhead.trl import GRPOConfig, GRPOTrainer   # was: from trl import GRPOConfig, GRPOTrainer

TRL itself need not be installed; where a script builds its config with TRL (``TrlParser``), that config is taken too.
What has no counterpart is told in a line each, and refused where a run without it would be another run.
``docs/from-trl.md`` lists every argument.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from levelhead.api import Result
from levelhead.api import train as run
from levelhead.documents.modes import open_to_readers
from levelhead.errors import InputError
from levelhead.integrations.trl.settings import DEFAULTS, keys_of
from levelhead.recipe import Recipe, dump, validate
from levelhead.recipe.trainers import Setting, trl
from levelhead.terminal import say
from levelhead.training.rundir import RunDir, unused_folder

__all__ = ["GRPOConfig", "GRPOTrainer"]

FILLED = ("accelerator_config",)
"""Settings that TRL's own config fills in where none is given."""
REFUSED = ("tools", "rollout_func", "environment_factory")
"""Arguments of the trainer without which a script would train something else."""


@dataclass(frozen=True, slots=True)
class TrainOutput:
    """What ``train()`` returns, under TRL's names.

    Attributes:
        global_step: Rollout batches that were trained on.
        metrics: ``train_runtime``, in seconds.
        result: Levelhead's own.
    """

    global_step: int
    metrics: Mapping[str, float]
    result: Result


class _Accelerator:
    """What scripts ask of ``trainer.accelerator``."""

    is_main_process = not int(os.environ.get("RANK", "0"))

    def print(self, *texts: Any) -> None:
        """Print, in the first process alone."""
        if self.is_main_process:
            say(" ".join(map(str, texts)))


class GRPOConfig:
    """Settings under TRL's names; attributes are those that are given, and TRL's defaults of what is carried over.

    Raises:
        InputError: TRL has no such argument.
    """

    def __init__(self, output_dir: str | None = None, **given: Any) -> None:
        names = trl()["config"]
        if unknown := [name for name in given if name not in names and name not in DEFAULTS]:
            near = difflib.get_close_matches(unknown[0], names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"GRPOConfig: TRL has no argument {unknown[0]}{hint}")
        self.given = {**given, **({"output_dir": output_dir} if output_dir else {})}
        vars(self).update({**DEFAULTS, **self.given})

    def __getattr__(self, name: str) -> Any:
        """Return ``None`` for an argument of TRL's that is not given."""
        if name.startswith("_") or name not in trl()["config"]:
            raise AttributeError(f"GRPOConfig has no attribute {name!r}")
        return None


class GRPOTrainer:
    """Trains as TRL's trainer of that name would be asked to.

    Args:
        model: Hugging Face name, folder, or a model that is loaded.
        reward_funcs: Reward functions.
        args: A :class:`GRPOConfig`, TRL's own, or ``None`` for TRL's defaults.
        train_dataset: Rows with a ``prompt`` column; a part of them is held out for evaluation.
        eval_dataset: Not used: evaluation is on rows held out of ``train_dataset``.
        processing_class: The tokenizer.
        callbacks: Not run.
        peft_config: PEFT's ``LoraConfig``.
        others: TRL's other arguments.

    Attributes:
        recipe: What it comes to; ``print(trainer.yaml)`` writes it out.
        unmoved: What has no counterpart, a line each.
        result: Of the run, once it is over.

    Raises:
        InputError: Something has no counterpart here that the run would need.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Any = None,
        peft_config: Any = None,
        **others: Any,
    ) -> None:
        self.args = args if args is not None else GRPOConfig()
        self.result: Result | None = None
        self.accelerator = _Accelerator()
        self._dataset, self._rewards = train_dataset, _functions(reward_funcs)
        self._tokenizer = processing_class
        _refuse(others, train_dataset)
        others |= {"eval_dataset": eval_dataset, "callbacks": callbacks}
        self.unmoved = [*_unmoved(self.args), *_unmoved_arguments(others)]
        name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
        self._model = None if isinstance(model, str) or peft_config is not None else model
        if not isinstance(model, str) and peft_config is not None:
            self.unmoved.append(
                f"model: loaded again from {name} for the adapter; quantisation, or weights that differ"
            )
        self.recipe: Recipe = validate(keys_of(self.args, name, peft_config, train_dataset, self.unmoved), "GRPOConfig")
        for line in self.unmoved:
            say(f"levelhead.trl: not moved: {line}", error=True)

    @property
    def yaml(self) -> str:
        """The recipe, as ``levelhead train`` takes it (with ``path`` and ``rewards`` of the task filled in)."""
        return dump(self.recipe)

    @property
    def model(self) -> Any:
        """The trained model, or the one that was given."""
        return self.result.model if self.result is not None else self._model

    @property
    def processing_class(self) -> Any:
        """Its tokenizer."""
        return self.result.tokenizer if self.result is not None else self._tokenizer

    def train(self, resume_from_checkpoint: Any = None) -> TrainOutput:
        """Train; with ``resume_from_checkpoint`` go on with the run in ``output_dir``.

        Raises:
            InputError: The recipe, its data or its folder do not fit.
        """
        folder = Path(self.args.output_dir) if self.args.output_dir else Path("runs") / self.recipe.name
        resume = bool(resume_from_checkpoint)
        tokenizer = self._tokenizer
        if self._model is not None and tokenizer is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self._model.config._name_or_path)
        start = time.perf_counter()
        self.result = run(
            self.recipe,
            out=folder if resume else unused_folder(folder),
            resume=resume,
            data=self._dataset,
            rewards=self._rewards,
            model=self._model,
            tokenizer=tokenizer if self._model is not None else None,
        )
        steps = sum(1 for _ in RunDir(self.result.folder).steps("grpo"))
        return TrainOutput(steps, {"train_runtime": time.perf_counter() - start}, self.result)

    def save_model(self, output_dir: str | None = None) -> None:
        """Write the trained model and its tokenizer as transformers reads them.

        Raises:
            InputError: Nothing has been trained yet.
        """
        if self.result is None:
            raise InputError("GRPOTrainer.save_model(): train() comes first")
        folder = output_dir or str(self.result.folder / "model")
        self.result.model.save_pretrained(folder)
        self.result.tokenizer.save_pretrained(folder)
        for weights in Path(folder).glob("*.safetensors"):
            open_to_readers(weights)

    def push_to_hub(self, *_: Any, **__: Any) -> None:
        """Say how the run is pushed: model card, scores and findings go with it."""
        folder = self.result.folder if self.result is not None else "RUN"
        name = self.args.hub_model_id or "NAME"
        say(f"levelhead.trl: push with: levelhead export {folder} --merge --out DIR --push {name}", error=True)


def _functions(rewards: Any) -> list[Any]:
    functions = list(rewards) if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]
    for function in functions:
        if not callable(function) or hasattr(function, "state_dict"):
            shown = function if isinstance(function, str) else type(function).__name__
            raise InputError(f"GRPOTrainer: reward_funcs: {shown} is no function; call a reward model from a function")
    return functions


def _refuse(others: Mapping[str, Any], dataset: Any) -> None:
    arguments = trl()["trainer"]
    for name in others:
        if name not in arguments:
            raise InputError(f"GRPOTrainer: TRL has no argument {name}")
    for name in REFUSED:
        if others.get(name):
            raise InputError(f"GRPOTrainer: {name}: {arguments[name].note}")
    if dataset is None:
        raise InputError("GRPOTrainer: train_dataset: missing")
    columns = getattr(dataset, "column_names", None) or ()
    if image := next((name for name in columns if name in ("image", "images")), None):
        raise InputError(f"GRPOTrainer: train_dataset: the column {image} holds pictures, and policies read text alone")


def _unmoved(args: Any) -> list[str]:
    """Return a line for each setting that differs from TRL's default and has no counterpart."""
    if isinstance(args, GRPOConfig):
        options = dict(args.given)
    elif is_dataclass(args):
        plain = {f.name: f.default for f in fields(args) if f.default is not MISSING and f.name not in FILLED}
        options = {name: getattr(args, name) for name, value in plain.items() if getattr(args, name) != value}
    else:
        raise InputError(f"GRPOTrainer: args: a GRPOConfig is wanted, not {type(args).__name__}")
    table = trl()["config"]
    lost = [table[name] for name in options if name in table and table[name].kind == "none" and options[name]]
    return [_line(setting) for setting in lost]


def _unmoved_arguments(others: Mapping[str, Any]) -> list[str]:
    notes = {
        "eval_dataset": "held-out rows of train_dataset are used instead",
        "callbacks": "they are not run; train(observers=) of levelhead shows every record",
    }
    table = trl()["trainer"]
    names = [name for name, value in others.items() if value is not None]
    return [f"{name}: {notes[name]}" if name in notes else _line(table[name]) for name in names]


def _line(setting: Setting) -> str:
    return setting.name + (f": {setting.note}" if setting.note else "")
