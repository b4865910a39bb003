"""The transports of a client: one folder per product."""

from typing import Final

__all__ = ("NOISY_LOGGERS", "UNUSED_IMPORTS")

NOISY_LOGGERS: Final = ("aiokafka",)
"""Loggers of drivers that log each failed attempt and then raise. Without a handler, Python prints these logs."""
UNUSED_IMPORTS: Final = {
    "redis.observability.metrics": "opentelemetry",
    "redis.observability.providers": "opentelemetry",
}
"""Module of a driver's library -> what it imports if that is installed, to count for itself; no command uses that."""
