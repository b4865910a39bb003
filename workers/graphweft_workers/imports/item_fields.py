"""Fields of an item of another store: their types, times and scopes are checked, and errors quote no value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from graphweft_contracts import MemoryScope
from graphweft_contracts.admission import MOST_AHEAD
from graphweft_contracts.memory import SCOPE_PATTERN
from graphweft_contracts.moments import since_1970
from graphweft_workers.imports.report import ImportReport, RefusedItem
from graphweft_workers.text.iso_time import in_utc, iso_time

_MOST_SCOPE: Final = 256
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final[dict[type[object], str]] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


_GONE: Final = frozenset({"deleted", "is_deleted", "removed", "archived", "is_archived", "tombstone"})
"""Fields that say whether an item still counts."""
_GONE_SINCE: Final = frozenset(
    {"deleted_at", "removed_at", "archived_at", "superseded_by", "replaced_by", "merged_into", "superseded_at"}
)
"""Fields that an item has only if it does not count any more."""
_STATES: Final = frozenset({"event", "action", "operation", "state", "status"})
_GONE_STATES: Final = frozenset(
    {
        *("delete", "deleted", "remove", "removed", "archive", "archived", "expired", "paused", "inactive"),
        *("forgotten", "superseded", "invalidated", "revoked", "tombstone"),
    }
)
"""Words of such a field for an item that does not count any more. mem0 answers an ``add`` with event: DELETE."""
_EXPIRES: Final = frozenset({"expiration_date", "expires_at", "expires_on", "expiry", "ttl"})


def in_snake_case(name: str) -> str:
    """Return ``isDeleted`` as ``is_deleted``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Fields:
    """The fields of one item. Raises ``RefusedItem`` if the item is not an object."""

    def __init__(self, item: JsonValue, report: ImportReport, *, now: datetime) -> None:
        if not isinstance(item, dict):
            raise RefusedItem(f"expected an object, found {_TYPES.get(type(item), 'null')}")
        self._item = item
        self._report = report
        self._now = now
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Tell whether the item has the field, with a value other than null."""
        return self._item.get(name) is not None

    def check_counts(self, ends: Collection[str]) -> None:
        """Raise ``RefusedItem`` for an item that its store does not show any more, or only for a while.

        The fields ``ends`` say how long, and the store's reader keeps that.
        """
        for name, value in self._item.items():
            key = in_snake_case(name)
            if key in _GONE and value not in (None, False, 0, "", "false", "0", "no"):
                raise RefusedItem(f"{key}: the item is deleted or archived: leave it out")
            if key in _GONE_SINCE and value not in (None, "", False, 0):
                raise RefusedItem(f"{key}: the item does not count any more: leave it out")
            if key in _STATES and isinstance(value, str) and value.strip().lower() in _GONE_STATES:
                raise RefusedItem(f"{key}: the item was deleted or does not count any more: leave it out")
            if key in _EXPIRES and name not in ends and value not in (None, ""):
                raise RefusedItem(f"{key}: this does not end an item here: remove the field or leave the item out")

    def text(self, name: str) -> str | None:
        """Return a text, or None if it is absent, null or empty. Graphs reject NUL, so it is removed."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise RefusedItem(f"{name}: expected text, found {_TYPES[type(value)]}")
        return value.replace("\0", "") or None

    def texts(self, name: str) -> list[str]:
        """Return the texts of a list, without anything else that it holds."""
        value = self.value(name)
        return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []

    def object(self, name: str) -> dict[str, JsonValue]:
        """Return an object, or an empty one if it is absent or null."""
        value = self.value(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RefusedItem(f"{name}: expected an object, found {_TYPES[type(value)]}")
        return value

    def time(self, name: str, *, past: bool = True) -> datetime | None:
        """Return a time in UTC, or None if it is absent or null. Without a zone it is read as UTC.

        With ``past`` it must lie between 1970 and tomorrow, as the times of all events.
        """
        value = self.value(name)
        try:
            match value:
                case None | "":
                    return None
                case bool():
                    raise ValueError
                case int() | float():
                    time = since_1970(value)
                case str():
                    time = iso_time(value)
                    if time.tzinfo is None:
                        self._report.without_zone += 1
                    time = in_utc(time)
                case _:
                    raise ValueError
        except (ValueError, OverflowError, OSError):
            raise RefusedItem(f"{name}: expected a time such as 2026-02-01T10:00:00Z, or seconds since 1970") from None
        if past and time < _EARLIEST:
            raise RefusedItem(f"{name}: it is before 1970")
        if past and time - self._now > MOST_AHEAD:
            raise RefusedItem(f"{name}: it is more than a day ahead of the clock here")
        return time

    def scope(self, names: Mapping[str, str], otherwise: MemoryScope | None) -> MemoryScope:
        """Return the scope of the item; ``names`` maps its fields to scopes. Without any it is ``otherwise``."""
        given: dict[str, str] = {}
        for name, scope in names.items():
            value = self.value(name)
            if value is None or value == "":
                continue
            if not isinstance(value, str):
                raise RefusedItem(f"{name}: expected text, found {_TYPES[type(value)]}")
            if len(value) > _MOST_SCOPE or not re.fullmatch(SCOPE_PATTERN, value):
                raise RefusedItem(
                    f"{name}: expected 1 to {_MOST_SCOPE} characters, without control characters and without a blank "
                    "at either end"
                )
            given[scope] = value
        if given:
            return MemoryScope(**given)
        if otherwise is None:
            raise RefusedItem(f"it names nobody ({', '.join(names)}): give --user for such items")
        return otherwise

    def value(self, name: str) -> JsonValue:
        """Return the value of a field as it is, or None."""
        self._read.add(name)
        return self._item.get(name)

    def rest(self, ignored: frozenset[str]) -> None:
        """Count the fields with a value that nobody has read, apart from ``ignored``, as left out."""
        for name, value in self._item.items():
            if name not in self._read and name not in ignored and value not in (None, "", [], {}):
                self._report.leave_out(name if len(name) < 40 and name.isidentifier() else "a field")
