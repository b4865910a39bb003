"""Counts of what a body holds, before it is parsed."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from graphweft_workers.gateway.structure import count_protobuf, fields_of
from graphweft_workers.text.content_limits import count_json

TEXT = st.text(st.sampled_from('ab,[]{}"\\\n\u2028é:'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)
FIELDS = fields_of(ExportTraceServiceRequest.DESCRIPTOR)


def values_in(value: Any) -> int:
    match value:
        case list():
            return 1 + sum(map(values_in, value))
        case dict():
            return 1 + sum(map(values_in, value.values()))
        case _:
            return 1


@given(VALUES, st.booleans())
def test_the_values_of_json_are_counted(value: Any, ascii_only: bool) -> None:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    assert count_json(compact, enough=0) == values_in(value)
    assert count_json(compact, enough=10**9) >= values_in(value)
    assert count_json(json.dumps(value, indent=1).encode(), enough=0) >= values_in(value)


@given(st.binary(max_size=40))
def test_any_bytes_are_counted(body: bytes) -> None:
    assert count_json(body, enough=0) >= 1
    count_protobuf(body, FIELDS, enough=100)


def test_strings_without_an_end_take_one_pass() -> None:
    for body in (b'"' + b'\\"' * 500_000, b'"' * 1_000_001, b'"' + b"\\" * 999_999):
        assert count_json(body, enough=0) == 1


def fields_in(message: Any) -> int:
    """Count the fields that a message writes, and those of the messages in it."""
    found = 0
    for field, value in message.ListFields():
        for each in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
            found += 1 + (fields_in(each) if field.message_type else 0)
    return found


def test_the_fields_of_protobuf_are_counted() -> None:
    deep: dict[str, Any] = {"stringValue": "x" * 300}
    for number in range(6):
        pair = {"kvlistValue": {"values": [{"key": f"k{number}", "value": deep}]}}
        deep = {"arrayValue": {"values": [deep, pair, {"doubleValue": 1.5}]}}
    for _ in range(30):
        deep = {"arrayValue": {"values": [deep]}}
    one = {
        "name": "a", "startTimeUnixNano": 2**63, "attributes": [{"key": "b", "value": deep}], "flags": 5,
        "events": [{"name": "c", "attributes": [{"key": "d"}]}], "links": [{}], "status": {"code": 2},
    }  # fmt: skip
    body = {"resourceSpans": [{"resource": {"attributes": [{"key": "r"}]}, "scopeSpans": [{"spans": [one] * 3}]}]}
    request = ExportTraceServiceRequest()
    json_format.ParseDict(body, request)
    written = request.SerializeToString()
    expected = fields_in(request)
    assert expected > 1_000
    assert count_protobuf(written, FIELDS, enough=10**6) == expected
    assert count_protobuf(written, FIELDS, enough=100) == 101
    assert count_protobuf(written[:-1], FIELDS, enough=10**6) is None
    assert count_protobuf(b"", FIELDS, enough=1) == 0


def test_what_is_no_protobuf_is_not_counted() -> None:
    for body in (b"\x0a\x05\x0a\x0a", b"\xff" * 20, b"\x0f", b"\x0a\x80", b"\x09\x00"):
        assert count_protobuf(body, FIELDS, enough=100) is None, body
