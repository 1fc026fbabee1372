"""The ``endpoint`` executor: real calls to an OpenAI-compatible chat endpoint."""

from levelhead.contrib.workflow.endpoint.runner import EndpointRunner

__all__ = ["EndpointRunner"]
