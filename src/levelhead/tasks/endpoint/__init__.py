"""Chat endpoints (OpenAI-compatible, Anthropic, Gemini): the client of the workflow operators and of the LLM judges."""

from levelhead.tasks.endpoint.cache import Reply, ReplyCache
from levelhead.tasks.endpoint.client import ChatClient
from levelhead.tasks.endpoint.dialects import Form
from levelhead.tasks.endpoint.exchange import BudgetError, EndpointError
from levelhead.tasks.endpoint.pace import Pace

__all__ = ["BudgetError", "ChatClient", "EndpointError", "Form", "Pace", "Reply", "ReplyCache"]
