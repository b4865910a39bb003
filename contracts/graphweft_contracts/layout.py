"""How a bus spreads events over its partitions. The bus stores it, so that all producers agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The partitions of a bus, and the order of each app.

    Only the first ``partitions`` ones get events from graphweft's producers; the log may have more.
    """

    partitions: int = DEFAULT_PARTITIONS
    order: Order = DEFAULT_ORDER
    exceptions: Mapping[str, Order] = field(default_factory=dict[str, Order])
    """Apps whose order is another than ``order``."""

    def order_of(self, app_id: str) -> Order:
        """Return the order of an app."""
        return self.exceptions.get(app_id, self.order)

    def partition_of(self, key: str) -> int:
        """Return the partition for the key of an event, ``app/chat``."""
        app_id = key.partition("/")[0]
        return partition_of(app_id if self.order_of(app_id) == "app" else key, self.partitions)

    def partitions_of(self, app_id: str) -> range:
        """Return the partitions that may hold events of an app; all of them for ``*`` and for a restatement."""
        if is_everywhere(app_id) or self.order_of(app_id) == "chat":
            return range(self.partitions)
        number = partition_of(app_id, self.partitions)
        return range(number, number + 1)

    @classmethod
    def of_stored(cls, partitions: int, orders: Mapping[str, str]) -> Layout:
        """Return the layout that a bus stores. A bus of an earlier version stores no order: its order is ``chat``."""
        known: dict[str, Order] = {app_id: "app" if order == "app" else "chat" for app_id, order in orders.items()}
        order = known.pop(ALL_APPS, "chat")
        return cls(partitions=partitions, order=order, exceptions=known)


NEW_LAYOUT: Final = Layout()
"""The layout of a new bus for which none is chosen."""


def is_everywhere(scope: str) -> bool:
    """Tell whether an activation for a scope is announced in all partitions, those of other producers too."""
    return scope == ALL_APPS or scope.startswith(RESTATED)
