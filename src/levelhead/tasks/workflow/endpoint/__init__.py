"""The ``endpoint`` executor: real calls to an OpenAI-compatible chat endpoint."""

from levelhead.tasks.workflow.endpoint.cache import Reply, ReplyCache
from levelhead.tasks.workflow.endpoint.client import BudgetError, ChatClient, EndpointError, Usage
from levelhead.tasks.workflow.endpoint.runner import EndpointRunner

__all__ = ["BudgetError", "ChatClient", "EndpointError", "EndpointRunner", "Reply", "ReplyCache", "Usage"]
