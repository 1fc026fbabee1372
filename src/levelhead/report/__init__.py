"""One self-contained HTML page a run."""

from levelhead.report.page import write

__all__ = ["write"]
