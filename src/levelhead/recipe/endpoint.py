"""How an OpenAI-compatible chat endpoint is reached: keys that the workflow executor and the LLM judges share."""

from __future__ import annotations

from pydantic import Field

from levelhead.section import Section


class Endpoint(Section):
    """Real calls to an OpenAI-compatible chat endpoint: vLLM, Ollama, a cloud."""

    base_url: str = Field(pattern=r"^https?://")
    """Up to and with ``/v1``: ``http://localhost:8000/v1``."""
    model: str
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """Environment variable that holds the key; the key itself never stands in a recipe."""
    max_tokens: int = Field(1024, ge=1)
    """Completion budget of one call."""
    concurrency: int = Field(8, ge=1, le=4096)
    """Calls under way at once."""
    timeout_s: float = Field(120.0, gt=0)
    """Longest time for one attempt at a call, from connecting to the last byte of the reply."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before the first retry; doubled, up to 30 s, with every further one, and cut at random by up to a half."""
    patience_s: float = Field(600.0, ge=0)
    """How long calls are retried while the endpoint is down or busy, before the run stops; four times as long where
    it is one call alone that gets no reply."""
    max_calls: int | None = Field(None, ge=1)
    """Budget in calls; the run stops cleanly once it is used up."""
    max_total_tokens: int | None = Field(None, ge=1, le=10**15)
    """Budget in tokens, as the endpoint counts them."""
    prompt_price: float = Field(0.0, ge=0)
    """Price of a million tokens that the model reads, in your currency, for the reported cost; 0 reports none."""
    completion_price: float = Field(0.0, ge=0)
    """Price of a million tokens that the model writes."""
    cache: str | None = None
    """File that keeps replies by content; a call that was answered before costs nothing."""
    send_seed: bool = True
    """Send a ``seed`` with every call, so that samples differ and can be drawn again."""

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what some tokens cost at the recipe's prices; ``None`` where it gives none."""
        if not self.prompt_price and not self.completion_price:
            return None
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6
