"""Rows of a query in the four formats of the rule contract, and the text that an agent reads of them.

Every value is made JSON-able here, once, so that replies can be sent and a block is the same for every runtime.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from graphweft_contracts import Block
from graphweft_rules.model import Format

__all__ = ("Rendered", "assemble", "render")

_PROPERTY: Final = re.compile(r"(?:[^\W\d]\w*|`[^`]+`)(?:\.(?:\w+|`[^`]+`))+")
_LONGEST_INTEGRAL: Final = 1e15
"""Beyond it floats no longer hold every whole number, and their digits say more than there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The value of a block, JSON-able, and the number of rows in it."""

    value: Any
    rows: int


def render(
    format: Format, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], max_results: int | None = None
) -> Rendered:
    """Return rows in a format: ``list`` a list of maps, ``single`` the first map or None, the others a string.

    A column ``p.name`` is called ``name`` where no other column would be. ``name`` is the block's; the value does not
    hold it, because ``assemble`` writes the heading.
    """
    names = _names(columns)
    records = [dict(zip(names, map(_plain, row), strict=True)) for row in rows[:max_results]]
    match format:
        case "list":
            return Rendered(value=records, rows=len(records))
        case "single":
            return Rendered(value=records[0] if records else None, rows=len(records[:1]))
        case "json":
            return Rendered(value=json.dumps(records, ensure_ascii=False, indent=2), rows=len(records))
        case "markdown":
            lines = (_line(record) for record in records)
            return Rendered(value="\n".join(f"- {line}" for line in lines if line), rows=len(records))


def assemble(blocks: Sequence[Block]) -> str:
    """Return the blocks as one text for a system message: each under its heading, empty ones left out."""
    return "\n\n".join(f"## {_title(block.name)}\n{text}" for block in blocks if block.rows and (text := _text(block)))


def _text(block: Block) -> str:
    if isinstance(block.value, str):
        return block.value
    return json.dumps(block.value, ensure_ascii=False)


def _title(name: str) -> str:
    return " ".join(word[0].upper() + word[1:] for word in name.replace("_", " ").split())


def _names(columns: Sequence[str]) -> list[str]:
    short = [column.rpartition(".")[2].strip("`") if _PROPERTY.fullmatch(column) else column for column in columns]
    return [last if short.count(last) == 1 else column for column, last in zip(columns, short, strict=True)]


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value."""
    whole: Any = value  # pyright forgets `Any` inside the cases
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(value)
        case Mapping():
            return {str(key): _plain(inner) for key, inner in whole.items()}
        case list() | tuple():
            return [_plain(inner) for inner in whole]
        case _:
            return str(value)


def _duration(value: timedelta) -> str:
    """Return an ISO 8601 duration such as ``P1DT2H``; the zero is ``PT0S``."""
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    date_part = f"{size.days}D" if size.days else ""
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or size.microseconds or not (date_part or clock):
        fraction = f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
        clock += f"{seconds}{fraction}S"
    return f"{'-' if value < timedelta() else ''}P{date_part}{'T' if clock else ''}{clock}"


def _line(record: Mapping[str, Any]) -> str:
    """Return a row as one line: the first cell stands out, the second explains it, the rest follow in parentheses."""
    cells = list(record.items())
    if len(cells) == 1:
        return _phrase(*cells[0])
    head, explanation = (_phrase(*cell) for cell in cells[:2])
    lead = ": ".join(part for part in (head and f"**{head}**", explanation) if part)
    rest = ", ".join(text for cell in cells[2:] if (text := _labelled(*cell)))
    return f"{lead} ({rest})" if lead and rest else lead or rest


def _labelled(name: str, value: Any) -> str:
    text = _phrase(name, value)
    return f"{_label(name)}: {text}" if text and not _is_rate(name, value) else text


def _phrase(name: str, value: Any) -> str:
    if not _is_rate(name, value):
        return _cell(value)
    # From the digits that the float shows, so that 0.285 is 28.5% and rounds up as a reader expects.
    percent = (Decimal(str(value)) * 100).quantize(Decimal(1), ROUND_HALF_UP)
    return f"{percent}% {_label(name).removesuffix('rate')}".rstrip()


def _is_rate(name: str, value: Any) -> bool:
    return name.endswith("_rate") and isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _label(name: str) -> str:
    return name.rpartition(".")[2].strip("`").replace("_", " ").strip().lower()


def _cell(value: Any) -> str:
    """Return a JSON-able value as text on one line; empty for null."""
    whole: Any = value  # pyright forgets `Any` inside the cases
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return _number(value)
        case dict():
            fields = ((_label(name), _cell(inner)) for name, inner in whole.items())
            return ", ".join(f"{label}: {text}" for label, text in fields if text)
        case list():
            return ", ".join(text for inner in whole if (text := _cell(inner)))
        case _:
            return " ".join(line.strip() for line in str(value).splitlines() if line.strip())


def _number(value: float) -> str:
    if abs(value) >= _LONGEST_INTEGRAL or 0 < abs(value) < 1:
        return f"{value:.4g}"
    return f"{value:.4f}".rstrip("0").rstrip(".")
