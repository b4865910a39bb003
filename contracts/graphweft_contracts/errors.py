"""The error tree of all graphweft packages.

::

    GraphweftError
    ├── Permanent                 a retry fails again: write a dead letter, or tell the user
    │   ├── InvalidEvent          an event that violates the contract
    │   │   ├── MalformedEvent    content that is not a JSON object
    │   │   ├── UnreadableEvent   a record that cannot be unpacked
    │   │   ├── RefusedEvent      an entry whose signature is missing or wrong
    │   │   └── MisplacedEvent    an entry in a partition that is another app's
    │   ├── InvalidRules          rule files that do not load (carries every finding)
    │   ├── InvalidSettings       invalid settings
    │   ├── PartitionRefused      the bus takes nothing for one partition until it is mended
    │   ├── QueryFailed           the graph refused a query (syntax, type, null key, timeout)
    │   └── NotRunning            a service does not answer
    └── Transient(retry_after_s)  the same call may succeed later: wait and retry
        ├── BusUnavailable
        │   └── MissingRight      this user of the bus may not do that: waiting helps only once an operator allows it
        ├── GraphUnavailable
        └── Fenced                another worker moved the checkpoint: read it again

The two branches tell a caller whether to retry.
"""

from __future__ import annotations

from typing import Literal


class GraphweftError(Exception):
    """Base of all errors that graphweft raises deliberately."""


class Permanent(GraphweftError):
    """The same call fails however often it is repeated."""


class InvalidEvent(Permanent):
    """The event violates the contract. The message names the field and the next step."""


class MalformedEvent(InvalidEvent):
    """The content is not a JSON object in UTF-8, so no field was checked."""


class UnreadableEvent(InvalidEvent):
    """The bus holds the record of the event, but it cannot be unpacked: an unknown codec, or a wrong checksum."""


class RefusedEvent(InvalidEvent):
    """The entry lacks a signature that its app needs, or has a wrong one. ``reason`` is that of the dead letter."""

    def __init__(self, message: str, *, reason: Literal["unsigned", "bad_signature"]) -> None:
        super().__init__(message)
        self.reason: Literal["unsigned", "bad_signature"] = reason


class MisplacedEvent(InvalidEvent):
    """The partition takes the events of another app only, or its app has another one of its own."""


class InvalidRules(Permanent):
    """Rule files do not load. The message lists every finding as ``file:line:column``."""


class InvalidSettings(Permanent):
    """A setting is unknown, malformed or contradicts another one."""


class NotRunning(Permanent):
    """The service that the settings name does not answer."""


class PartitionRefused(Permanent):
    """The bus takes no event for one partition, and waiting does not help. The message names the command that mends it.

    Other partitions take theirs.
    """


class QueryFailed(Permanent):
    """The graph refused or aborted a query, which had no effect.

    ``code`` is ``query_error`` or ``timeout``; dead letters, replies and metrics carry it. ``of_value`` says that a
    value does not fit, such as a map for a property: the same query may take other values.
    """

    def __init__(self, message: str, *, code: str = "query_error", of_value: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.of_value = of_value


class Transient(GraphweftError):
    """The same call may succeed after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BusUnavailable(Transient):
    """The bus cannot be reached or refuses work for now."""


class MissingRight(BusUnavailable):
    """The bus answers, and refuses this user a right. The message names the command that prints the rights it needs.

    Processes go on asking, because an operator may grant the right. Commands end.
    """


class GraphUnavailable(Transient):
    """The graph server cannot be reached, is loading, or refuses work for now."""


class Fenced(Transient):
    """Another worker has moved the checkpoint of a partition: read it again and continue from there."""
