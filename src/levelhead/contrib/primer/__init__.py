"""``primer``: short made-up texts that teach a policy from random weights to copy, find, quote and choose."""

from levelhead.contrib.primer.task import PrimerTask

__all__ = ["PrimerTask"]
