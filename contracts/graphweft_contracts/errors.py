"""The error tree of all graphweft packages.

::

    GraphweftError
    ├── Permanent                 trying again changes nothing: dead letter, or tell the user
    │   ├── InvalidEvent          an event that breaks the contract
    │   ├── InvalidRules          rule files that do not load (carries every finding)
    │   ├── InvalidSettings       settings that cannot work
    │   ├── QueryFailed           the graph refused a query (syntax, type, null key, timeout)
    │   └── NotRunning            nothing answers where a service was expected
    └── Transient(retry_after_s)  the same call may succeed later: wait, try again
        ├── BusUnavailable
        ├── GraphUnavailable
        └── Displaced             somebody else moved the graph's position: read it again

The first split is what a caller does about it.
"""

from __future__ import annotations


class GraphweftError(Exception):
    """Base of everything that graphweft raises on purpose."""


class Permanent(GraphweftError):
    """The same call fails again however often it is repeated."""


class InvalidEvent(Permanent):
    """The event breaks the contract; the message names the field and the next step."""


class InvalidRules(Permanent):
    """Rule files do not load. The message lists every finding as ``file:line:column``."""


class InvalidSettings(Permanent):
    """A setting is unknown, malformed or contradicts another one."""


class NotRunning(Permanent):
    """No service answers where the settings say that one should."""


class QueryFailed(Permanent):
    """The graph refused or aborted one query; nothing of that query took effect.

    ``code`` is the bounded reason that goes to dead letters, replies and metrics:
    ``query_error`` or ``timeout``.
    """

    def __init__(self, message: str, *, code: str = "query_error") -> None:
        super().__init__(message)
        self.code = code


class Transient(GraphweftError):
    """The same call may succeed after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BusUnavailable(Transient):
    """The bus (Redis, Kafka) cannot be reached or refuses work for now."""


class GraphUnavailable(Transient):
    """The graph server cannot be reached, is loading, or refuses work for now."""


class Displaced(Transient):
    """Another worker has moved the position of a partition; reading it again and going on from there is right."""
