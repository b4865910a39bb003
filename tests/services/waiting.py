"""Waits of tests; see ``graphweft_workers.testing.waiting``."""

from graphweft_workers.testing.waiting import LIMIT_S, NotReached, looks, turns, until, until_answered, until_sync

__all__ = ("LIMIT_S", "NotReached", "looks", "turns", "until", "until_answered", "until_sync")
