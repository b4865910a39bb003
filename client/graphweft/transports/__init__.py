"""The transports of a client: one folder per product."""

from typing import Final

__all__ = ("NOISY_LOGGERS",)

NOISY_LOGGERS: Final = ("aiokafka",)
"""Loggers of drivers that log each failed attempt and then raise. Without a handler, Python prints these logs."""
