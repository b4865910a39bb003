"""Values as the page may show them: JSON, cut to a size, without secrets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Final, cast

from graphweft_workers.text.redaction import redact_cell

TEXT: Final = 2_000
"""Characters of a text that are shown."""
ITEMS: Final = 50
"""Members of a list or map that are shown."""
DEPTH: Final = 6
VALUES: Final = 2_000
"""Values that are shown of one value, those inside of it included."""
CHARS: Final = 200_000
"""Characters of all texts of one value that are shown."""
_SAFE: Final = 2**53
"""JavaScript keeps integers below."""


def shown(
    value: Any, label: str = "", *, redacts: bool = True, text: int = TEXT, depth: int = DEPTH, values: int = VALUES
) -> Any:
    """Return a value for the page. With ``redacts``, secrets are replaced as in contexts; ``label`` names the value.

    Long texts, lists and maps end with a mark, and so does a value with more than ``values`` values inside. Integers
    that JavaScript cannot hold become text.
    """
    return _ValueCutter(redacts=redacts, text=text, left=values).of(value, label, depth)


@dataclass(slots=True, kw_only=True)
class _ValueCutter:
    redacts: bool
    text: int
    left: int
    """Values that may still be shown: an event of a megabyte may hold a hundred thousand, and each is looked at."""
    chars: int = CHARS

    def of(self, value: Any, label: str, depth: int) -> Any:
        self.left -= 1
        match value:
            case None | bool():
                return value
            case str():
                return self._text(value, label)
            case int():
                return value if -_SAFE < value < _SAFE else self._text(_digits(value), label)
            case float():
                return value if math.isfinite(value) else str(value)
            case datetime() | date() | time():
                return value.isoformat()
            case timedelta():
                return value.total_seconds()
            case Mapping() if depth and self.left > 0:
                return self._map(value, depth)  # pyright: ignore[reportUnknownArgumentType]
            case list() | tuple() | set() | frozenset() if depth and self.left > 0:
                return self._list(cast("Collection[Any]", value), label, depth)
            case Mapping() | list() | tuple() | set() | frozenset():
                return "…"
            case _:
                return self._text(str(value), label)

    def _map(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, (name, each) in enumerate(value.items()):
            if number == ITEMS or self.left <= 0 or self.chars <= 0:
                return found | {"…": f"{len(value) - number:,} more"}
            found[self._text(str(name), "")] = self.of(each, str(name), depth - 1)
        return found

    def _list(self, value: Collection[Any], label: str, depth: int) -> list[Any]:
        found: list[Any] = []
        for number, each in enumerate(value):
            if number == ITEMS or self.left <= 0 or self.chars <= 0:
                return [*found, f"… {len(value) - number:,} more"]
            found.append(self.of(each, label, depth - 1))
        return found

    def _text(self, value: str, label: str) -> str:
        most = max(0, min(self.text, self.chars))
        self.chars -= min(len(value), most)
        # A lone surrogate cannot be sent.
        cut = value[:most].encode("utf-8", "backslashreplace").decode()
        # A secret at the cut would be shown in part, so a little more is read.
        around = value[: most + 500].encode("utf-8", "backslashreplace").decode()
        whole = redact_cell(label, around) if self.redacts else cut
        return whole if len(value) <= most else f"{whole[:most]}… ({len(value):,} characters)"


def _digits(value: int) -> str:
    # Python writes no integers with more than some thousand digits.
    return str(value) if value.bit_length() < 4_096 else f"a number of {value.bit_length():,} bits"
