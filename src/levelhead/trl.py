"""TRL's ``GRPOConfig`` and ``GRPOTrainer`` by their names, trained by Levelhead: one import of a script changes.

    from levelhead.trl import GRPOConfig, GRPOTrainer   # was: from trl import GRPOConfig, GRPOTrainer

TRL itself need not be installed; where a script builds its config with TRL (``TrlParser``), that config is taken too.
Every argument is kept, changes nothing here for a reason, or is refused with the way out (``docs/from-trl.md``).
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelhead.api import Result
from levelhead.api import train as run
from levelhead.documents.modes import open_to_readers
from levelhead.errors import InputError
from levelhead.integrations.trl.sections import Asked
from levelhead.integrations.trl.settings import keys_of, refusals, settings_of, without_effect
from levelhead.recipe import Recipe, dump, validate
from levelhead.recipe.trainers import trl
from levelhead.tasks.function.stateful_tools import Environments
from levelhead.terminal import say
from levelhead.training.rundir import unused_folder

if TYPE_CHECKING:
    from transformers import TrainerState
    from transformers.trainer_utils import TrainOutput

__all__ = ["GRPOConfig", "GRPOTrainer"]

HELD_OUT = 0.1
"""Share of the rows that is held out where a script names no ``eval_dataset``."""
MOST_SCORED = 256
"""Rows of an ``eval_dataset`` that an evaluation scores at most."""


class _Accelerator:
    """What scripts ask of ``trainer.accelerator``."""

    is_main_process = not int(os.environ.get("RANK", "0"))

    def print(self, *texts: Any) -> None:
        """Print, in the first process alone."""
        if self.is_main_process:
            say(" ".join(map(str, texts)))


class GRPOConfig:
    """Settings under TRL's names; attributes are those that a script sets, and TRL's defaults of the others.

    Raises:
        InputError: TRL has no such argument.
    """

    def __init__(self, output_dir: str | None = None, **settings: Any) -> None:
        table = trl()["config"]
        if unknown := [name for name in settings if name not in table]:
            near = difflib.get_close_matches(unknown[0], table, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"GRPOConfig: TRL has no argument {unknown[0]}{hint}")
        self.settings = {**settings, **({"output_dir": output_dir} if output_dir else {})}
        vars(self).update({name: setting.default for name, setting in table.items()} | self.settings)


class GRPOTrainer:
    """Trains as TRL's trainer of that name would be asked to.

    Args:
        model: Hugging Face name, folder, or a model that is loaded.
        reward_funcs: Reward functions.
        args: A :class:`GRPOConfig`, TRL's own, or ``None`` for TRL's defaults.
        train_dataset: Rows with a ``prompt`` column.
        eval_dataset: Rows that evaluations score; a tenth of ``train_dataset`` is held out unless given.
        processing_class: The tokenizer.
        callbacks: Callbacks of transformers.
        peft_config: PEFT's ``LoraConfig``.
        quantization_config: A ``BitsAndBytesConfig`` of four bits, beside ``peft_config``.
        tools: Functions that the policy may call.
        environment_factory: Makes an object a rollout, whose public methods the policy may call.
        others: TRL's other arguments, which are refused.

    Attributes:
        recipe: What it comes to; ``print(trainer.yaml)`` writes it out.
        result: Of the run, once it is over.

    Raises:
        InputError: Something would make another run than TRL's; names it and the way out.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Sequence[Any] | None = None,
        peft_config: Any = None,
        quantization_config: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        environment_factory: Callable[[], Any] | None = None,
        **others: Any,
    ) -> None:
        self.args: Any = args if args is not None else GRPOConfig()
        settings = settings_of(self.args)
        _refuse(settings, others, train_dataset, eval_dataset)
        self.result: Result | None = None
        self.accelerator = _Accelerator()
        self.hub_model_id = settings.get("hub_model_id")
        callables: list[Any] = list(tools or ())
        names = [getattr(tool, "__name__", type(tool).__name__) for tool in callables]
        functions = [] if reward_funcs is None else _functions(reward_funcs)
        if environment_factory is not None:
            environments = _environments(environment_factory)
            callables, names = [*callables, environments], [*names, *environments.names]
            if environments.reward is not None:
                functions.append(environments.reward)
                if settings.get("reward_weights") is not None:
                    settings = {**settings, "reward_weights": [*settings["reward_weights"], 1.0]}
        if not functions:
            raise InputError("GRPOTrainer: reward_funcs: missing; give a function, or environments with get_reward")
        self._data = {"data": train_dataset, "eval_data": eval_dataset, "rewards": functions, "tools": callables}
        self._tokenizer, self._callbacks = processing_class, list(callbacks or ())
        self._observer: Any = None
        asked = _asked(model, peft_config, quantization_config, train_dataset, eval_dataset)
        asked = replace(asked, tools=names)
        # Weights of four bits are loaded again: how they are packed is Levelhead's own.
        self._model = None if isinstance(model, str) or asked.four_bits else model
        keys = keys_of(settings, asked)
        if eval_dataset is not None:
            rows = min(MOST_SCORED, _length(eval_dataset) or MOST_SCORED)
            keys["eval"] |= {"items": rows, "final_items": rows}
        self.recipe: Recipe = validate(keys, "GRPOConfig")
        if idle := without_effect(settings):
            say(f"levelhead.trl: no effect here (docs/from-trl.md says why): {', '.join(idle)}", error=True)

    @property
    def yaml(self) -> str:
        """The recipe, as ``levelhead train`` takes it (with ``path`` and ``rewards`` of the task filled in)."""
        return dump(self.recipe)

    @property
    def model(self) -> Any:
        """The trained model, or the one that was passed."""
        return self.result.model if self.result is not None else self._model

    @property
    def processing_class(self) -> Any:
        """The tokenizer of the policy."""
        return self.result.tokenizer if self.result is not None else self._tokenizer

    @property
    def state(self) -> TrainerState:
        """State of a trainer as transformers keeps it: ``global_step``, ``max_steps``, ``epoch``, ``log_history``."""
        state: TrainerState = self._watching().state
        return state

    def add_callback(self, callback: Any) -> None:
        """Add a callback of transformers, an instance or its class."""
        self._callbacks.append(callback)
        self._observer = None

    def is_world_process_zero(self) -> bool:
        """Whether this is the first of several processes."""
        return self.accelerator.is_main_process

    def train(self, resume_from_checkpoint: Any = None) -> TrainOutput:
        """Train; with ``resume_from_checkpoint`` go on with the run in ``output_dir``.

        Raises:
            InputError: The recipe, its data or its folder do not fit.
        """
        from transformers.trainer_utils import TrainOutput

        folder = Path(self.args.output_dir) if self.args.output_dir else Path("runs") / self.recipe.name
        resume, checkpoint = _checkpoint(resume_from_checkpoint, folder)
        if self.args.trackio_space_id:
            os.environ["TRACKIO_SPACE_ID"] = self.args.trackio_space_id
        start, observer = time.perf_counter(), self._watching()
        self.result = run(
            self.recipe,
            out=folder if resume else unused_folder(folder),
            resume=resume,
            resume_from=checkpoint,
            model=self._model,
            tokenizer=None if self._model is None else self._tokenizer or _tokenizer_of(self._model),
            observers=[observer],
            **self._data,
        )
        losses = [row["loss"] for row in observer.state.log_history if "loss" in row]
        loss = sum(losses) / max(1, len(losses))
        seconds, steps = time.perf_counter() - start, observer.state.global_step
        metrics = {"train_runtime": seconds, "train_steps_per_second": steps / seconds, "train_loss": loss}
        observer.ended(metrics)
        if self.args.load_best_model_at_end:
            self.result = self._with_best(self.result)
        if self.args.push_to_hub:
            self.push_to_hub()
        return TrainOutput(steps, loss, metrics)

    def evaluate(self) -> dict[str, Any]:
        """Return the newest scores of held-out rows; a run makes them before its first and after its last step.

        Raises:
            InputError: Nothing has been trained yet.
        """
        self._trained("evaluate")
        rows = [row for row in self.state.log_history if any(name.startswith("eval_") for name in row)]
        return dict(rows[-1])

    def save_model(self, output_dir: str | None = None) -> None:
        """Write the trained model and its tokenizer as transformers reads them.

        Raises:
            InputError: Nothing has been trained yet.
        """
        result = self._trained("save_model")
        folder = output_dir or str(result.folder / "model")
        result.model.save_pretrained(folder)
        result.tokenizer.save_pretrained(folder)
        for weights in Path(folder).glob("*.safetensors"):
            open_to_readers(weights)

    def push_to_hub(self, commit_message: str = "End of training", **_: Any) -> str:
        """Upload the trained model with a card of its scores and findings; returns the repository's address.

        Raises:
            InputError: Nothing has been trained yet, or the hub cannot be reached or refuses.
        """
        from levelhead.export.card import card
        from levelhead.export.write import push

        result = self._trained("push_to_hub")
        self.hub_model_id = name = self.args.hub_model_id or result.folder.name
        base, adapter = self.recipe.model.name, self.recipe.model.lora is not None
        with tempfile.TemporaryDirectory() as folder:
            self.save_model(folder)
            words = f"The weights are {str(result.model.dtype).removeprefix('torch.')}, as they were trained."
            origin = f"step {self.state.global_step}"
            text = card(result.folder, "the trained model", origin, base, adapter=adapter, precision=words)
            (Path(folder) / "README.md").write_text(text, encoding="utf-8")
            return push(
                Path(folder),
                name,
                private=bool(self.args.hub_private_repo),
                token=self.args.hub_token,
                revision=self.args.hub_revision,
                message=commit_message,
            )

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Print metrics, in the first process alone."""
        self.accelerator.print("\n".join([f"{split} metrics", *(f"  {k} = {v}" for k, v in metrics.items())]))

    def save_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Write ``SPLIT_results.json`` into the run's folder."""
        path = self._trained("save_metrics").folder / f"{split}_results.json"
        path.write_text(json.dumps(dict(metrics), indent=4) + "\n", encoding="utf-8")

    def save_state(self) -> None:
        """Write ``trainer_state.json`` into the run's folder."""
        self.state.save_to_json(str(self._trained("save_state").folder / "trainer_state.json"))

    def _watching(self) -> Any:
        """The observer that calls the callbacks and keeps the state."""
        from levelhead.integrations.trl.observer import CallbackObserver

        if self._observer is None:
            grpo = self.recipe.grpo
            assert grpo is not None  # noqa: S101 - keys_of writes the section
            rows = _length(self._data["data"])
            groups = grpo.batch_size // grpo.group_size
            epoch = None if rows is None else rows / groups
            updates = grpo.updates_per_batch * grpo.epochs
            self._observer = CallbackObserver(self._callbacks, self.args, updates, epoch)
        return self._observer

    def _trained(self, method: str) -> Result:
        if self.result is None:
            raise InputError(f"GRPOTrainer.{method}(): train() comes first")
        return self.result

    def _with_best(self, result: Result) -> Result:
        """Return the result with the model of the best checkpoint, where one was kept."""
        from levelhead.export.write import BEST
        from levelhead.policy.load import load_checkpoint

        folder = result.folder / "checkpoints" / BEST
        if not folder.is_dir():
            return result
        return replace(result, model=load_checkpoint(self.recipe.model, folder, seed=self.recipe.seed).model)


def _refuse(settings: Mapping[str, Any], others: Mapping[str, Any], dataset: Any, eval_dataset: Any) -> None:
    """Raise ``InputError`` with all that would make another run, each with its way out."""
    for name in others:
        if name not in trl()["trainer"]:
            raise InputError(f"GRPOTrainer: TRL has no argument {name}")
    others = {name: value for name, value in others.items() if value != (None, None)}
    lines = [f"GRPOTrainer: {line}" for line in refusals("trainer", others)]
    lines += [f"GRPOConfig: {line}" for line in refusals("config", settings)]
    if lines:
        raise InputError("\n".join(lines))
    if dataset is None:
        raise InputError("GRPOTrainer: train_dataset: missing")
    if isinstance(eval_dataset, Mapping):
        raise InputError("GRPOTrainer: eval_dataset: several data sets; join them with datasets.concatenate_datasets")
    columns = getattr(dataset, "column_names", None) or ()
    if image := next((name for name in columns if name in ("image", "images")), None):
        raise InputError(f"GRPOTrainer: train_dataset: the column {image} holds pictures, and policies read text alone")


def _functions(rewards: Any) -> list[Any]:
    functions = list(rewards) if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]
    for function in functions:
        if not callable(function) or hasattr(function, "state_dict"):
            shown = function if isinstance(function, str) else type(function).__name__
            raise InputError(f"GRPOTrainer: reward_funcs: {shown} is no function; call a reward model from a function")
    return functions


def _environments(factory: Any) -> Environments:
    if isinstance(factory, Mapping):
        raise InputError("GRPOTrainer: environment_factory: one factory, not a dict; the row says which it is to make")
    return Environments(factory)


def _asked(model: Any, peft: Any, quantization: Any, data: Any, eval_data: Any) -> Asked:
    """What a script asks for besides its settings.

    Raises:
        InputError: The weights are quantized in a way that is not there.
    """
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
    quantization = quantization or getattr(getattr(model, "config", None), "quantization_config", None)
    if isinstance(quantization, Mapping):
        four_bits = bool(quantization.get("load_in_4bit"))
    else:
        four_bits = bool(getattr(quantization, "load_in_4bit", False))
    if quantization is not None and not four_bits:
        raise InputError("GRPOTrainer: quantization_config: load_in_4bit (NF4) alone is there; or leave it out")
    rows = _length(data)
    if rows is not None and eval_data is None:
        rows *= 1 - HELD_OUT
    return Asked(name, "" if peft is None else _kind(model), peft, four_bits, rows)


def _kind(model: Any) -> str:
    """The ``model_type`` of a model or of the name of one; empty where it cannot be had yet."""
    if not isinstance(model, str):
        return str(model.config.model_type)
    from transformers import AutoConfig

    try:
        return str(AutoConfig.from_pretrained(model).model_type)
    except (OSError, ValueError):
        return ""


def _length(data: Any) -> float | None:
    return float(len(data)) if hasattr(data, "__len__") else None


def _checkpoint(resume: Any, folder: Path) -> tuple[bool, str | None]:
    """Whether to go on, and from which checkpoint: TRL takes ``True`` or a folder."""
    if not isinstance(resume, str | os.PathLike):
        return bool(resume), None
    path = Path(resume)
    if path.parent != folder / "checkpoints":
        raise InputError(f"train(resume_from_checkpoint={resume}): give True, or one of {folder / 'checkpoints'}")
    return True, path.name


def _tokenizer_of(model: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model.config._name_or_path)
