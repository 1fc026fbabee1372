"""Oracles: for some pages, the right action to take next.

An oracle sees what the policy sees (the goal, the page as elements and text, the step) and no more, so that what it
does can be learnt from it.  It raises ``LookupError`` where it does not know what to do.
"""

from __future__ import annotations

from levelhead.contrib.browser.oracles import clicks, forms
from levelhead.contrib.browser.oracles.find import Oracle

ORACLES: dict[str, Oracle] = clicks.ORACLES | forms.ORACLES
"""Page name to its oracle."""

__all__ = ["ORACLES", "Oracle"]
