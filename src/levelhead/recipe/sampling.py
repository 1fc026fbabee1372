"""``sampling``: how completions are drawn.  Training and evaluation have a section each."""

from __future__ import annotations

from pydantic import Field

from levelhead.recipe.base import Section


class Sampling(Section):
    """Controls of one sampler call."""

    temperature: float = Field(1.0, ge=0)
    """Logits are divided by it; 0 is greedy."""
    top_k: int = Field(0, ge=0)
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probability reaches p."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Keep tokens at least this fraction as likely as the likeliest."""
    max_new_tokens: int = Field(64, ge=1)
    """Completion budget, the stop token included."""
    min_new_tokens: int = Field(0, ge=0)
    """Stop tokens are suppressed until the completion holds this many tokens."""


class EvalSampling(Sampling):
    """Controls while evaluating: greedy unless said otherwise."""

    temperature: float = Field(0.0, ge=0)
    """Logits are divided by it; 0 is greedy."""
