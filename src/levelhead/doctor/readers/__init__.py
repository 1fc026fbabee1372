"""Readers: any trainer's log to rows under canonical names."""

from levelhead.doctor.readers.base import Reader, Row, Unread
from levelhead.doctor.readers.detect import FORMATS, make_reader, recognise

__all__ = ["FORMATS", "Reader", "Row", "Unread", "make_reader", "recognise"]
