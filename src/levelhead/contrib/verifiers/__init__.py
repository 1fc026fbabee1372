"""Environments written with the package ``verifiers`` (Brown, 2025)."""

from levelhead.contrib.verifiers.task import VerifiersTask

__all__ = ["VerifiersTask"]
