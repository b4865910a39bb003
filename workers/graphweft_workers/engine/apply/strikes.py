"""How often in a row a graph server did not answer the same write of an app, while it answered others."""

from __future__ import annotations

from dataclasses import dataclass

from graphweft_contracts import GraphUnavailable
from graphweft_workers.ports.graph_store import Checkpoint


@dataclass(slots=True)
class _Strike:
    times: int = 0
    at: Checkpoint | None = None
    """Where the graph stood when the write was tried again."""


class Strikes:
    """The strikes of all apps of a worker, by partition and app. They last as long as the process."""

    def __init__(self) -> None:
        self._strikes: dict[tuple[int, str], _Strike] = {}

    def note(self, partition: int, app_id: str, error: GraphUnavailable) -> None:
        """Count a write that the server did not answer in time; other errors do not count."""
        if _timed_out(error):
            self._strikes.setdefault((partition, app_id), _Strike()).times += 1

    def forget(self, partition: int, app_id: str) -> None:
        """Start to count anew: a write succeeded."""
        self._strikes.pop((partition, app_id), None)

    def of(self, partition: int, app_id: str, checkpoint: Checkpoint) -> int:
        """Return how often in a row the server did not answer the write after ``checkpoint``."""
        strike = self._strikes.get((partition, app_id))
        if strike is None:
            return 0
        if strike.at != checkpoint:
            strike.at, strike.times = checkpoint, 1
        return strike.times


def _timed_out(error: BaseException) -> bool:
    """Tell whether a server did not answer in time, in contrast to a connection that was cut."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TimeoutError) or type(found).__name__ == "TimeoutError":
            return True
        found = found.__cause__
    return False
