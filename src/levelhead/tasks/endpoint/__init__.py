"""An OpenAI-compatible chat endpoint: the client of the workflow operators and of the LLM judges."""

from levelhead.tasks.endpoint.cache import Reply, ReplyCache
from levelhead.tasks.endpoint.client import ChatClient, all_of
from levelhead.tasks.endpoint.errors import BudgetError, EndpointError

__all__ = ["BudgetError", "ChatClient", "EndpointError", "Reply", "ReplyCache", "all_of"]
