"""How a bus spreads events over its partitions. The bus stores it, so that all producers agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final, Literal, TypeAlias

from graphweft_contracts.channels import partition_of

Order: TypeAlias = Literal["app", "chat"]
"""``app``: all events of an app take effect in log order. ``chat``: only those of a chat do, and its chats are spread
over all partitions, so that several workers share the app.
"""
DEFAULT_PARTITIONS: Final = 64
"""Partitions of a new bus. The first process decides; later ones read the number from the bus."""
DEFAULT_ORDER: Final[Order] = "app"
ALL_APPS: Final = "*"
"""The scope of all apps without a setting of their own."""
RESTATED: Final = "restated:"
"""Begins the scope of a restatement, before the app's id; see ``rules_log.Activation``."""


_OWN: Final = "own:"
"""Begins the stored order of an app with a partition of its own; see ``OwnPartition.stored``."""
_OWN_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPartition:
    """The partition of an app that shares none. No number is ever given to a second app."""

    number: int
    since: datetime
    """Of what the bus takes later, only events in this partition have an effect for the app."""
    before: Order
    """The order of the app when it got the partition: it says where its earlier events are."""

    def stored(self) -> str:
        """Return the text that a bus stores as the order of the app."""
        return f"{_OWN}{self.number}:{round(self.since.timestamp() * 1000)}:{self.before}"

    @classmethod
    def of_stored(cls, text: str) -> OwnPartition | None:
        """Return what ``stored`` returned; None for any other order."""
        parts = text.removeprefix(_OWN).split(":")
        if not text.startswith(_OWN) or len(parts) != _OWN_PARTS or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        since = datetime.fromtimestamp(int(parts[1]) / 1000, timezone.utc)
        return cls(number=int(parts[0]), since=since, before="chat" if parts[2] == "chat" else "app")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The partitions of a bus, and the order of each app.

    Only the first ``count`` ones get events from graphweft's producers; the log may have more.
    """

    partitions: int = DEFAULT_PARTITIONS
    """Partitions that apps share, the first ones."""
    order: Order = DEFAULT_ORDER
    exceptions: Mapping[str, Order] = field(default_factory=dict[str, Order])
    """Apps whose order is another than ``order``."""
    own: Mapping[str, OwnPartition] = field(default_factory=dict[str, OwnPartition])
    """Apps with a partition of their own, behind the shared ones. Their order is ``app``."""

    @property
    def count(self) -> int:
        """The number of partitions, shared ones and those of single apps."""
        return max([self.partitions, *(each.number + 1 for each in self.own.values())])

    def order_of(self, app_id: str) -> Order:
        """Return the order of an app."""
        return "app" if app_id in self.own else self.exceptions.get(app_id, self.order)

    def partition_of(self, key: str) -> int:
        """Return the partition for the key of an event, ``app/chat``."""
        app_id = key.partition("/")[0]
        if (own := self.own.get(app_id)) is not None:
            return own.number
        return partition_of(app_id if self.order_of(app_id) == "app" else key, self.partitions)

    def partitions_of(self, app_id: str) -> Sequence[int]:
        """Return the partitions that may hold events of an app; all of them for ``*`` and for a restatement.

        The first one takes new events. A partition of its own is followed by those that it shared before.
        """
        if is_everywhere(app_id):
            return range(self.count)
        own = self.own.get(app_id)
        if (self.order_of(app_id) if own is None else own.before) == "chat":
            shared = range(self.partitions)
        else:
            number = partition_of(app_id, self.partitions)
            shared = range(number, number + 1)
        return shared if own is None else (own.number, *shared)

    def fault_of(self, partition: int, app_id: str, received: datetime) -> str:
        """Return why an event of an app has no effect in a partition, with the next step; empty if it has."""
        own = self.own.get(app_id)
        if own is not None and own.number == partition:
            return ""
        owner = None if partition < self.partitions else self.owner_of(partition)
        if owner is not None:
            return f"partition {partition} takes events of the app {owner!r} only, and this one names {app_id!r}"
        if own is None or received < own.since:
            return ""
        return (
            f"the app {app_id!r} has a partition of its own, {own.number}, since {own.since:%Y-%m-%dT%H:%M:%SZ}, and "
            f"this event came later to partition {partition}: update its producer, and let it send the event again"
        )

    def owner_of(self, partition: int) -> str | None:
        """Return the only app whose events a partition takes; None for one that apps share."""
        return next((app_id for app_id, each in self.own.items() if each.number == partition), None)

    def own_lost_in(self, other: Layout) -> dict[str, OwnPartition]:
        """Return the partitions of single apps that another layout of the bus lacks, by app."""
        return {app_id: own for app_id, own in self.own.items() if other.own.get(app_id) != own}

    def orders(self) -> dict[str, str]:
        """Return what a bus stores of the orders; see ``of_stored``."""
        return {ALL_APPS: self.order, **self.exceptions, **{app_id: each.stored() for app_id, each in self.own.items()}}

    @classmethod
    def of_stored(cls, partitions: int, orders: Mapping[str, str]) -> Layout:
        """Return the layout that a bus stores. A bus of an earlier version stores no order: its order is ``chat``."""
        found = {app_id: OwnPartition.of_stored(order) for app_id, order in orders.items()}
        own = {app_id: each for app_id, each in found.items() if each is not None}
        known: dict[str, Order] = {
            app_id: "app" if order == "app" else "chat" for app_id, order in orders.items() if app_id not in own
        }
        order = known.pop(ALL_APPS, "chat")
        return cls(partitions=partitions, order=order, exceptions=known, own=own)


NEW_LAYOUT: Final = Layout()
"""The layout of a new bus for which none is chosen."""


def is_everywhere(scope: str) -> bool:
    """Tell whether an activation for a scope is announced in all partitions, those of other producers too."""
    return scope == ALL_APPS or scope.startswith(RESTATED)
