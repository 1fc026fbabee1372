"""The whole recipe."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from levelhead.objective.controllers import Controller
from levelhead.objective.task_weights import TaskWeights
from levelhead.recipe.generator import AnyGenerator, Local, Vllm
from levelhead.recipe.guard import Guard
from levelhead.recipe.model import Model
from levelhead.recipe.objective import Shaping
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.tasks import TaskRecipe
from levelhead.recipe.training import Best, Checkpoint, Distributed, Evaluation, Grpo, Logging, Sft
from levelhead.recipe.variants import CUSTOM
from levelhead.section import Section


class Recipe(Section):
    """What the user asked for: one YAML file, or the same in Python."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=128)
    """Name of the run, and of its folder under ``runs/``: letters, digits, ``.``, ``_`` and ``-``, no dot in front."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Every random draw of the run comes from it."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads; 0 leaves the choice to torch."""
    check: bool = True
    """Run the preflight before the first step; a check that fails keeps the run from starting."""
    model: Model
    """The policy."""
    generator: AnyGenerator = Local()
    """Where completions come from: the trainer's own model, or vLLM servers."""
    tasks: list[TaskRecipe] = Field(min_length=1)
    """What is learnt."""
    sft: Sft | None = None
    """The supervised stage; absent, it is left out."""
    grpo: Grpo | None = None
    """The reinforcement stage; absent, it is left out."""
    guard: Guard = Guard()
    """What watches the updates of the reinforcement stage."""
    eval: Evaluation = Evaluation()
    """Held-out scoring."""
    checkpoint: Checkpoint = Checkpoint()
    """What is saved."""
    distributed: Distributed = Distributed()
    """How several processes share the model."""
    log: Logging = Logging()
    """What is written."""

    @model_validator(mode="after")
    def _task_names_differ(self) -> Self:
        names = [task.title for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tasks are called {twice[0]!r}; give one of them another tasks[].name")
        return self

    @model_validator(mode="after")
    def _named_tasks_exist(self) -> Self:
        names, best = [task.title for task in self.tasks], self.checkpoint.best
        rule = self.grpo.task_weights if self.grpo is not None else None
        asked = [("checkpoint.best", name) for name in ([best.task, *best.weights] if isinstance(best, Best) else ())]
        if len(names) > 1:  # with one task these are names of its reward parts, which answers alone tell
            asked += [("eval.reference", name) for name in self.eval.reference]
        if isinstance(rule, TaskWeights):
            asked += [(f"grpo.task_weights.{key}", name) for name, key in rule.tasks.items()]
        for key, name in asked:
            if name is not None and name not in names:
                raise ValueError(f"{key}: no task is called {name!r}; there are {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _shaping_is_read(self) -> Self:
        if self.grpo is None or self.grpo.advantage.kind == CUSTOM or self.grpo.advantage.make().reads_total:
            return self
        for index, task in enumerate(self.tasks):
            if task.shaping != Shaping():
                raise ValueError(
                    f"tasks.{index}.shaping changes the total reward, which grpo.advantage.kind: "
                    f"{self.grpo.advantage.kind} does not look at; remove one of them"
                )
        return self

    @model_validator(mode="after")
    def _a_factor_of_a_task_starts_above_zero(self) -> Self:
        for index, task in enumerate(self.tasks):
            start = task.kl if task.kl is not None else self.grpo.kl.coef if self.grpo else 0.0
            own = task.kl_controller if isinstance(task.kl_controller, Controller) else None
            if self.grpo is not None and own is not None and own.starts_above_zero and start == 0:
                raise ValueError(
                    f"tasks.{index}.kl_controller: a {own.name} multiplies the coefficient, so tasks.{index}.kl (or "
                    "grpo.kl.coef) must be above 0 to start from"
                )
        return self

    @model_validator(mode="after")
    def _four_bits_stay_whole(self) -> Self:
        if self.model.in_four_bits and self.distributed.shard == "full":
            raise ValueError("model.lora.load_in_4bit: packed weights are not divided; set distributed.shard to none")
        return self

    @model_validator(mode="after")
    def _an_engine_fits(self) -> Self:
        engine = self.generator
        if not isinstance(engine, Vllm):
            return self
        if self.grpo is not None and self.grpo.loss.importance is None:
            raise ValueError(
                "generator.kind: vllm samples with other kernels than the trainer's, and grpo.loss.importance corrects "
                "for what differs; set it (token_truncate)"
            )
        if self.grpo is not None and self.grpo.ahead and engine.sleep:
            raise ValueError("generator.sleep: the server is to sample while the policy trains; set grpo.async to 0")
        if engine.sync == "adapter" and self.model.lora is None:
            raise ValueError("generator.sync: adapter sends a LoRA adapter, and there is no model.lora; use files")
        if engine.sync == "adapter" and self.model.lora is not None and self.model.lora.modules_to_save:
            raise ValueError(
                "generator.sync: adapter cannot send model.lora.modules_to_save, which are no adapter; use files"
            )
        if engine.sync == "adapter" and self.model.in_four_bits:
            raise ValueError(
                "generator.sync: adapter leaves the base to the server, which does not hold the one of "
                "model.lora.load_in_4bit; use files, which sends the weights that the policy computes with"
            )
        for key, sampling in (
            ("eval.sampling", self.eval.sampling),
            ("grpo.sampling", self.grpo and self.grpo.sampling),
        ):
            if sampling:
                check_controls(sampling, key)
        return self


def check_controls(sampling: Sampling, key: str) -> None:
    """Check that vLLM samples by these controls as the trainer does.

    Raises:
        ValueError: It does not: it has no such control, or counts the prompt where ours counts the completion alone.
    """
    if sampling.repetition_penalty != 1:
        raise ValueError(
            f"{key}.repetition_penalty: vLLM counts the prompt's tokens too, and so penalises answers for quoting it; "
            f"set it to 1, or use presence_penalty or frequency_penalty, which count the completion alone"
        )
    if sampling.no_repeat_ngram:
        raise ValueError(f"{key}.no_repeat_ngram: vLLM has no such control; set it to 0, or generator.kind to local")
