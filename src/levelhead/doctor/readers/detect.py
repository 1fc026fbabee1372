"""Which format a file has, from its first bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from levelhead import extensions
from levelhead.doctor.readers.base import ExtensionReader, Reader
from levelhead.doctor.readers.binary import TensorBoardReader, WandbReader
from levelhead.doctor.readers.own import OwnRunReader
from levelhead.doctor.readers.text import TextReader
from levelhead.errors import InputError

HEAD = 1 << 16
"""Bytes looked at."""

_SIGNATURES: tuple[tuple[str, str], ...] = (
    ("levelhead", r'"stage"\s*:\s*"(?:grpo|sft|eval)"'),
    ("trl-state", r'"log_history"'),
    ("ms-swift", r"global_step/max_steps"),
    ("verl-file", r'^[^\S\n]*\{"step"\s{0,8}:\s{0,8}\d+\s{0,8},\s{0,8}"data"\s{0,8}:\s{0,8}\{'),
    ("verl", r"(?:^|\s)step:\d+ - |(?:actor/(?:pg_loss|ppo_kl|pg_clipfrac)|critic/score/mean)"),
    ("openrlhf", r"Global step \d+\s{0,8}:\s{0,8}\{|actor_grad_norm|\bact_lr\b|response_clip_ratio"),
    ("prime-rl", r"Step \d+ \| (?:Time: )?[\d.]+s \||mismatch_kl/all/mean|Mismatch KL"),
    ("nemo-rl", r"Training Results:|token_mult_prob_error|Generation KL Error"),
    ("slime", r"(?:perf|rollout|train) \d+\s{0,8}:\s{0,8}\{|rollout/response_len/mean"),
    ("open-instruct", r"val/ratio_var|loss/policy_avg|policy/clipfrac_avg"),
    ("tensorboard-csv", r"^\W*Wall time,Step,Value"),
    (
        "wandb-csv",
        r'^"?(?:Step|_step|train/global_step|Relative Time \(Process\))"?,.*(?: - |_runtime|__MIN)|^[^\n]*"?_step"?,',
    ),
    ("trl-notebook", r"Step\W+Training Loss"),
    ("trl-unsloth", r"Unsloth"),
    ("trl", r"""'(?:reward_std|completion_length|rewards/[\w./-]+)'\s*:|['"]completions/mean_length['"]\s*:"""),
    ("jsonl", r'^\s*\{"[\s\S]*\}[^\S\n]*\n\s*\{"'),
    ("json", r"^\s*(?:\{\s*[\"}]|\[\s*[\[{])"),
    ("markdown", r"^[^\S\n]*\|.*\|[^\S\n]*\n\s{0,8}\|?[ \t:|-]+\|"),
    ("csv", r"^[^\n{}=:|,]*,[^\n{}=:|]*\n[^\n{}=:,]*,"),
)
# These describe the file's beginning, not a line anywhere in it.
_AT_START = {"tensorboard-csv", "json", "jsonl", "csv"}
_COMPILED = tuple((name, re.compile(p, 0 if name in _AT_START else re.MULTILINE)) for name, p in _SIGNATURES)


def formats() -> tuple[str, ...]:
    """Return every name that ``--format`` takes, those of installed packages included."""
    return ("tensorboard", "wandb", *extensions.names("readers"), *(name for name, _ in _SIGNATURES), "text")


def recognise(head: bytes) -> str:
    """Name of the format that ``head`` (the first bytes of a file) has; ``text`` where nothing is recognised."""
    if head.startswith(b":W&B"):
        return "wandb"
    if _is_tfrecord(head):
        return "tensorboard"
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = head[:HEAD].decode(encoding, "replace").lstrip("\ufeff")
    start = text.lstrip()
    for name in extensions.names("readers"):
        if _extension(name).signature.search(text):
            return name
    for name, pattern in _COMPILED:
        if pattern.match(start) if name in _AT_START else pattern.search(text):
            # Unsloth's TRL logs a length under its old and its new name.
            both = name == "trl" and "'completion_length'" in text and "'completions/mean_length'" in text
            return "trl-unsloth" if both else name
    return "text"


def _is_tfrecord(head: bytes) -> bool:
    """An event file starts with the record of its version: ``brain.Event:2``."""
    if len(head) < 16:
        return False
    (length,) = struct.unpack_from("<Q", head)
    return length < 4096 and b"brain.Event:" in head[12 : 12 + length + 4]


def _extension(name: str) -> type[ExtensionReader]:
    reader: type[ExtensionReader] = extensions.load("readers", name)
    return reader


def make_reader(name: str, extra: Mapping[str, str] | None = None, value_name: str | None = None) -> Reader:
    """The reader for a format.

    Args:
        name: One of :func:`formats`.
        extra: The user's own ``canonical -> raw key`` pairs.
        value_name: Raw key of a CSV column that is only called ``Value``.

    Raises:
        InputError: For an unknown name.
    """
    if name not in formats():
        raise InputError(f"unknown format {name!r}: give one of {', '.join(formats())}")
    if name == "tensorboard":
        return TensorBoardReader(extra)
    if name == "wandb":
        return WandbReader(extra)
    if name == "levelhead":
        return OwnRunReader()
    if name in extensions.names("readers"):
        return _extension(name)(extra)
    return TextReader(name, extra, value_name)
