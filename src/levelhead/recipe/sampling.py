"""How completions are drawn.  Training and evaluation have a section each."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from levelhead.section import Section


class Sampling(Section):
    """Controls of one sampler call."""

    temperature: float = Field(1.0, ge=0, le=100)
    """Logits are divided by it; 0 is greedy."""
    top_k: int = Field(0, ge=0)
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probability reaches p."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Keep tokens at least this fraction as likely as the likeliest."""
    max_new_tokens: int = Field(64, ge=1, le=10_000_000)
    """Completion budget, the stop token included."""
    min_new_tokens: int = Field(0, ge=0)
    """Stop tokens are suppressed until the completion holds this many tokens."""
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    """Subtracted from the logit of every token that the completion holds; the prompt does not count."""
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    """Subtracted from a token's logit once for each time that the completion holds it; the prompt does not count."""
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    """Logits of tokens that the completion holds are divided by it where positive and multiplied where negative
    (Keskar et al. 2019); 1 is none, and the prompt does not count."""
    no_repeat_ngram: int = Field(0, ge=0)
    """No run of this many tokens occurs twice in a completion; 0 allows all."""
    rows_at_once: int = Field(256, ge=1, le=1_048_576)
    """Completions drawn at once.  The rest waits until all of them have ended: where a batch has many more, and answers
    differ much in length, a larger number is faster, and takes memory in proportion.  What is drawn does not change."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.min_new_tokens >= self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens ({self.min_new_tokens}) must be less than max_new_tokens ({self.max_new_tokens}), "
                "or no completion can end by itself"
            )
        return self


class TrainSampling(Sampling):
    """Controls of rollouts, whose temperature may move over training."""

    temperature_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Path of the temperature from ``temperature`` at the first step to ``temperature_final`` at the last."""
    temperature_final: float | None = Field(None, gt=0, le=100)
    """Temperature of the last step, for a linear or cosine schedule."""

    @model_validator(mode="after")
    def _schedule_is_whole(self) -> Self:
        if (self.temperature_schedule == "constant") != (self.temperature_final is None):
            raise ValueError(
                "temperature_schedule: linear or cosine needs temperature_final, and a constant temperature has none; "
                f"got {self.temperature_schedule} and {self.temperature_final}"
            )
        if self.temperature_final is not None and self.temperature == 0:
            raise ValueError("temperature: 0 (greedy) cannot be scheduled; start above 0")
        return self

    def at(self, step: int, steps: int) -> Self:
        """Return the controls of one step, with the temperature that the schedule gives it.

        Args:
            step: Steps done before this one, 0 at the start.
            steps: Steps of the whole stage; step ``steps - 1`` has ``temperature_final``.
        """
        if self.temperature_final is None:
            return self
        progress = min(max(step / max(steps - 1, 1), 0.0), 1.0)
        if self.temperature_schedule == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        temperature = self.temperature + progress * (self.temperature_final - self.temperature)
        return self.model_copy(update={"temperature": temperature})


class EvalSampling(Sampling):
    """Controls while evaluating: greedy unless said otherwise."""

    temperature: float = Field(0.0, ge=0, le=100)
    """Logits are divided by it; 0 is greedy."""
