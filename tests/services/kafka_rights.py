"""Gives users of a Kafka cluster the rights that lines of ``kafka-acls.sh`` name, without a Java process for each."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.admin import CreateAclsRequest

__all__ = ("apply",)

_KINDS: Final = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}
_OPERATIONS: Final = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
_PATTERNS: Final = {"literal": 3, "prefixed": 4}
_ALLOW: Final = 3


async def apply(admin: AIOKafkaAdminClient, lines: list[str]) -> None:
    """Do what the lines say: of kafka-acls.sh and kafka-topics.sh."""
    for line in lines:
        tool, *arguments = shlex.split(line)
        if tool == "kafka-topics.sh":
            await _make_topic(admin, arguments)
        else:
            assert tool == "kafka-acls.sh"
            await _allow(admin, arguments)


async def _allow(admin: Any, arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--cluster", action="store_const", const=["kafka-cluster"], default=[])
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--resource-pattern-type", default="literal", choices=_PATTERNS)
    for name in ("--operation", "--topic", "--group", "--transactional-id"):
        parser.add_argument(name, action="append", default=[])
    given = parser.parse_args(arguments)
    for kind, number in _KINDS.items():
        for name in getattr(given, kind):
            for operation in given.operation:
                request = CreateAclsRequest(
                    number, name, _PATTERNS[given.resource_pattern_type], given.allow_principal, "*",
                    _OPERATIONS[operation], _ALLOW,
                )  # fmt: skip
                response = await admin._send_request(request)
                assert not any(code for code, *_ in response.creation_responses), response


async def _make_topic(admin: AIOKafkaAdminClient, arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--create", "--if-not-exists"):
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--config", action="append", default=[])
    given = parser.parse_args(arguments)
    configs = dict(setting.split("=") for setting in given.config)
    made: Any = await admin.create_topics([NewTopic(given.topic, given.partitions, 1, topic_configs=configs)])
    assert not any(code for _, code, *_ in made.topic_errors), made
