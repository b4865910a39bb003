"""Offsets of entries: their two forms, and their order within a partition. Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from graphweft_workers.ports.event_log import CommittedPosition

_DIGITS: Final = "[0-9]{1,20}"
"""Of a number below 2^64; Python reads none of thousands of digits."""
_FORMS: Final = {
    form: re.compile(pattern, re.ASCII)
    for form, pattern in (
        ("number", _DIGITS),
        ("pair", f"{_DIGITS}-{_DIGITS}"),
        ("either", f"{_DIGITS}(-{_DIGITS})?"),
    )
}


class OffsetForm(Enum):
    """How a bus writes its offsets. The empty offset comes before the first entry in either form."""

    NUMBER = "number"
    """``17``: the number of entries of the partition before this one."""
    PAIR = "pair"
    """``1700000000000-3``: two numbers, the first one decides."""
    EITHER = "either"
    """Of an archive without its bus."""

    def accepts(self, offset: str) -> bool:
        """Tell whether a text has this form, or is empty."""
        return not offset or _FORMS[self.value].fullmatch(offset) is not None

    def write(self, number: int) -> str:
        """Return an offset that begins with a number."""
        return str(number) if self is OffsetForm.NUMBER else f"{number}-0"

    def entries_up_to(self, position: CommittedPosition) -> int:
        """Return how many entries were written up to a position, as ``PartitionStatus`` counts them."""
        return int(position.offset or -1) + 1 if self is OffsetForm.NUMBER else position.count


def offset_order(offset: str) -> tuple[int, ...]:
    """Return a value by which offsets of one partition can be sorted; that of the empty offset comes first."""
    return tuple(map(int, offset.split("-"))) if offset else ()


def is_after(offset: str, other: str) -> bool:
    """Tell whether ``offset`` comes after ``other`` in a partition."""
    if not offset or not other:
        return bool(offset)
    first, _, second = offset.partition("-")
    other_first, _, other_second = other.partition("-")
    if first != other_first:
        return int(first) > int(other_first)
    return int(second or 0) > int(other_second or 0)


def later(offset: str, other: str) -> str:
    """Return the offset that comes after the other one in a partition."""
    return offset if is_after(offset, other) else other
