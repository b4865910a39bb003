"""Values as the page may show them: JSON, cut to a size, without secrets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, Final, cast

from graphweft_workers.redaction import redact_cell

TEXT: Final = 2_000
"""Characters of a text that are shown."""
ITEMS: Final = 50
"""Members of a list or map that are shown."""
DEPTH: Final = 6
_SAFE: Final = 2**53
"""JavaScript keeps integers below."""


def shown(value: Any, label: str = "", *, redacts: bool = True, text: int = TEXT, depth: int = DEPTH) -> Any:
    """Return a value for the page. With ``redacts``, secrets are replaced as in contexts; ``label`` names the value.

    Long texts, lists and maps end with a mark. Integers that JavaScript cannot hold become text.
    """
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, label, redacts=redacts, most=text)
        case int():
            return value if -_SAFE < value < _SAFE else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping() if depth:
            pairs: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
            names = list(pairs)[:ITEMS]
            found: dict[str, Any] = {
                _text(str(name), "", redacts=redacts, most=text): shown(
                    pairs[name], str(name), redacts=redacts, text=text, depth=depth - 1
                )
                for name in names
            }
            return found if len(names) == len(pairs) else found | {"…": f"{len(pairs) - len(names):,} more"}
        case list() | tuple() | set() | frozenset() if depth:
            items = list(cast("Iterable[Any]", value))
            some = [shown(item, label, redacts=redacts, text=text, depth=depth - 1) for item in items[:ITEMS]]
            return some if len(items) <= ITEMS else [*some, f"… {len(items) - ITEMS:,} more"]
        case Mapping() | list() | tuple() | set() | frozenset():
            return "…"
        case _:
            return _text(str(value), label, redacts=redacts, most=text)


def _text(value: str, label: str, *, redacts: bool, most: int) -> str:
    # A lone surrogate cannot be sent.
    cut = value[:most].encode("utf-8", "backslashreplace").decode()
    # A secret at the cut would be shown in part, so a little more is read.
    whole = redact_cell(label, value[: most + 500].encode("utf-8", "backslashreplace").decode()) if redacts else cut
    return whole if len(value) <= most else f"{whole[:most]}… ({len(value):,} characters)"
