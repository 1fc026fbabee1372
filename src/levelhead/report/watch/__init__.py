"""The live page of ``levelhead watch``: a local server over run folders that sends a browser only what is new."""

from levelhead.report.watch.server import KEY_VARIABLE, WatchServer, serve

__all__ = ["KEY_VARIABLE", "WatchServer", "serve"]
