"""Which partition a context request goes to, and which one gets it again when nothing is heard of the first."""

from __future__ import annotations

import random

from graphweft.transports.kafka.timing import KAFKA_TIMING, KafkaTiming
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock


class RequestPartitions:
    """The partitions of the requests, in turn; those that were silent are left out for a while.

    Two or more responders never share a pair of partitions (0 and 1, 2 and 3, …): aiokafka assigns partitions in turn.
    """

    def __init__(self, count: int, *, clock: Clock = SYSTEM_CLOCK, timing: KafkaTiming = KAFKA_TIMING) -> None:
        self._count = count
        self._clock = clock
        self._timing = timing
        self._turn = random.randrange(count)
        self._silent: dict[int, float] = {}
        """Silent partitions, and until when they are left out."""

    def first(self) -> int:
        """Return the next partition; a silent one only if all are silent."""
        heard = self._next_heard()
        self._turn = (self._turn + 1) % self._count if heard is None else heard
        return self._turn

    def second(self, first: int) -> int | None:
        """Note that ``first`` is silent, and return a partition of another responder; None if all are silent.

        So where all are slow, requests are not doubled. If the other partition of the pair is silent, it is any that is
        not: most of those belong to a responder that lives.
        """
        self._silent[first] = self._clock.monotonic() + self._timing.silent_s
        other = first ^ 1
        if other == self._count:  # the last of an odd number
            other = first - 1
        return other if other >= 0 and not self._is_silent(other) else self._next_heard()

    def heard(self, partition: int) -> None:
        """Note that the responder of a partition is alive."""
        self._silent.pop(partition, None)

    def _next_heard(self) -> int | None:
        """Return the next partition in turn that is not silent."""
        after = ((self._turn + step) % self._count for step in range(1, self._count + 1))
        return next((partition for partition in after if not self._is_silent(partition)), None)

    def _is_silent(self, partition: int) -> bool:
        return self._silent.get(partition, 0.0) > self._clock.monotonic()
