"""How a chat endpoint is reached: keys that the workflow executor and the LLM judges share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from levelhead import extensions
from levelhead.section import Section

if TYPE_CHECKING:
    Provider = str
else:
    Provider = Literal[tuple(extensions.OURS["providers"])]

OWN_KEYS = frozenset({"model", "messages", "contents", "system", "systemInstruction", "stream"})
"""Keys of a call's body that ``extra_body`` cannot set: they are what is asked, and how the answer is read."""


class Endpoint(Section):
    """Real calls to a chat endpoint: an OpenAI-compatible one (vLLM, Ollama, a cloud), Anthropic's, or Gemini's."""

    provider: Provider = "openai"
    """How calls are written: ``openai`` (chat completions, which most servers speak), ``anthropic`` (its messages
    API) or ``gemini`` (``generateContent``)."""
    base_url: str = Field(pattern=r"^https?://")
    """Up to and with the version: ``http://localhost:8000/v1``, ``https://api.anthropic.com/v1``,
    ``https://generativelanguage.googleapis.com/v1beta``."""
    model: str
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """Environment variable that holds the key; the key itself never stands in a recipe."""
    max_tokens: int = Field(1024, ge=1)
    """Completion budget of one call."""
    concurrency: int = Field(8, ge=1, le=4096)
    """Most calls under way at once; halved where the endpoint says that there are too many (429), and raised again by
    one for as many replies as there are calls at once."""
    requests_per_minute: float | None = Field(None, ge=0.1)
    """Calls a minute, over all processes on this machine that ask the endpoint with the same key; no bound unless
    given."""
    tokens_per_minute: float | None = Field(None, ge=1)
    """Tokens a minute, read and written, over the same processes; no bound unless given."""
    timeout_s: float = Field(120.0, gt=0)
    """Longest time for one attempt at a call, from connecting to the last byte of the reply."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before the first retry; doubled, up to 30 s, with every further one, and cut at random by up to a half."""
    patience_s: float = Field(600.0, ge=0)
    """How long calls are retried while the endpoint is down or busy, before the run stops; four times as long where
    it is one call alone that gets no reply."""
    max_calls: int | None = Field(None, ge=1)
    """Budget in calls, failed and repeated ones included; the run stops cleanly once it is used up."""
    max_total_tokens: int | None = Field(None, ge=1, le=10**15)
    """Budget in tokens, as the endpoint counts them, replies that were of no use included."""
    max_cost: float | None = Field(None, gt=0)
    """Budget in money, at the prices below; calls under way when it is used up are let finish."""
    prompt_price: float = Field(0.0, ge=0)
    """Price of a million tokens that the model reads, in your currency, for the reported cost; 0 reports none."""
    completion_price: float = Field(0.0, ge=0)
    """Price of a million tokens that the model writes."""
    cache: str | None = None
    """File that keeps replies by content; a call that was answered before costs nothing."""
    send_seed: bool = True
    """Send a ``seed`` with every call, so that samples differ and can be drawn again."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of every call's body, as the endpoint names them (``chat_template_kwargs``, ``thinking``); ``null``
    leaves one out (``{temperature: null}``), and objects are merged with those of the call."""

    @field_validator("extra_body")
    @classmethod
    def _extra_body_asks_nothing_else(cls, value: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(OWN_KEYS & set(value)):
            raise ValueError(f"{', '.join(own)} cannot be set here: the call sets it itself")
        return value

    @model_validator(mode="after")
    def _money_needs_prices(self) -> Self:
        if self.max_cost is not None and not self.prompt_price and not self.completion_price:
            raise ValueError("max_cost needs prompt_price or completion_price: without prices nothing costs anything")
        return self

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what some tokens cost at the recipe's prices; ``None`` where it gives none."""
        if not self.prompt_price and not self.completion_price:
            return None
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6
