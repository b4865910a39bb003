"""Batches of Kafka's older formats, which a current broker still sends and no current producer writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy

from graphweft_workers.drivers.kafka.careful_reader import _parsed

PLACE = TopicPartition("t", 0)


def response(*batches: bytes, end: int) -> Any:
    part: Any = (0, 0, end, end, 0, [], -1, b"".join(batches))
    return SimpleNamespace(API_VERSION=11, topics=[("t", [part])])


def older(offset: int, value: bytes, *, magic: int, codec: int = 0) -> bytes:
    builder = _LegacyRecordBatchBuilderPy(magic=magic, compression_type=codec, batch_size=10_000)
    builder.append(offset, 1_000 if magic else None, b"k", value)
    return bytes(builder.build())


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_read(magic: int) -> None:
    found, following, fault = _parsed(
        response(older(3, b"a", magic=magic), older(4, b"b", magic=magic), end=5), PLACE, 3, 9
    )
    assert ([record.value for record in found], following, fault) == ([b"a", b"b"], 5, None)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_record_of_an_older_format_has_a_stand_in(magic: int) -> None:
    damaged = bytearray(older(3, b"a", magic=magic))
    damaged[-1] ^= 1
    found, following, fault = _parsed(response(bytes(damaged), older(4, b"b", magic=magic), end=5), PLACE, 3, 9)
    assert [(record.offset, record.value) for record in found] == [(3, None), (4, b"b")]
    assert following == 5
    assert "checksum" in str(fault)


def test_what_is_cut_off_is_left_for_the_next_response() -> None:
    whole = older(3, b"a", magic=1)
    found, following, _ = _parsed(response(whole, older(4, b"b", magic=1)[:-1], end=5), PLACE, 3, 9)
    assert ([record.value for record in found], following) == ([b"a"], 4)
