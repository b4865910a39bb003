"""Counts what a body of protobuf holds before it is parsed: a parser makes up to a hundred bytes of memory out of one.

The count is an upper bound that is found in one pass. That of JSON is in ``content_limits``.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_LONGEST_VARINT: Final = 10

type Fields = dict[int, Fields]
"""The fields of a protobuf message that are messages themselves, by number."""


def count_protobuf(body: bytes, fields: Fields, *, enough: int) -> int | None:
    """Return how many fields a protobuf message and the messages in it have; it stops counting beyond ``enough``.

    None: the body is not protobuf.
    """
    count, at = 0, 0
    waiting: list[tuple[int, Fields]] = []
    end, inside = len(body), fields
    try:
        while True:
            while at >= end:
                if at > end:
                    return None
                if not waiting:
                    return count
                end, inside = waiting.pop()
            count += 1
            if count > enough:
                return count
            tag, at = _varint(body, at)
            kind = tag & 7
            if kind == _VARINT:
                _, at = _varint(body, at)
            elif kind == _BYTES:
                size, at = _varint(body, at)
                deeper = inside.get(tag >> 3)
                if deeper is None or not size:
                    at += size
                else:
                    waiting.append((end, inside))
                    end, inside = at + size, deeper
                    if end > waiting[-1][0]:
                        return None
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            elif kind not in {_GROUP, _END_GROUP}:
                return None
    except (IndexError, ValueError):
        return None


def _varint(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    for place in range(at, at + _LONGEST_VARINT):
        byte = body[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError("no varint")


@cache
def fields_of(descriptor: Any) -> Fields:
    """Return the fields of a message by its protobuf descriptor. A message may contain itself."""
    known: dict[str, Fields] = {}

    def of(each: Any) -> Fields:
        found = known.get(each.full_name)
        if found is None:
            found = known[each.full_name] = {}
            found.update({field.number: of(field.message_type) for field in each.fields if field.message_type})
        return found

    return of(descriptor)
