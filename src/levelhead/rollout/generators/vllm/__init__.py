"""Servers of vLLM that sample: requests, weight syncs, the probe after each, and the command that starts a server."""
