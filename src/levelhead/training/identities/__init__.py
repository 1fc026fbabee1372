"""Exact statements about a run, checked while it goes on: what each proves stands in docs/identities.md."""

from levelhead.training.identities.watcher import Identities, NoIdentities

__all__ = ["Identities", "NoIdentities"]
