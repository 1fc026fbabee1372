"""Readers: any trainer's log to rows under canonical names."""

from levelhead.doctor.readers.base import Reader, Row, Unread
from levelhead.doctor.readers.detect import formats, make_reader, recognise

__all__ = ["Reader", "Row", "Unread", "formats", "make_reader", "recognise"]
