"""The workflow language: grammar, typed tree, canonical printer, static checks, extraction from a model's answer."""

from levelhead.contrib.workflow.language.checks import Limits, check, most_calls
from levelhead.contrib.workflow.language.extract import Extraction, extract
from levelhead.contrib.workflow.language.parser import parse, to_text
from levelhead.contrib.workflow.language.tree import (
    Call,
    Chain,
    Conditional,
    Done,
    Loop,
    Node,
    Parallel,
    WorkflowError,
    calls,
    chain,
    depth,
)

__all__ = [
    "Call",
    "Chain",
    "Conditional",
    "Done",
    "Extraction",
    "Limits",
    "Loop",
    "Node",
    "Parallel",
    "WorkflowError",
    "calls",
    "chain",
    "check",
    "depth",
    "extract",
    "most_calls",
    "parse",
    "to_text",
]
