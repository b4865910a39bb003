"""The doctor's checks of Kafka. They create nothing: topics are created at the first use of the bus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from aiokafka import codec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from graphweft.transport import MAX_EVENT_BYTES
from graphweft.transports.kafka.connection import Servers, servers
from graphweft.transports.kafka.layout import stored_layout
from graphweft_contracts import Layout, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.drivers.kafka.log_times import LOG_TIME, TIMES_MATTER, how_to_set_times
from graphweft_workers.drivers.kafka.rights_check import missing, why_not
from graphweft_workers.ports.check import Check, layout_checks

_ANSWER_S: Final = 10.0
_NO_LIMIT: Final = "-1"
_COPIES: Final = 3
_AS_SENT: Final = "producer"
"""The setting of a topic that keeps the codec of each producer."""
_TEXT: Final = b"graphweft " * 100
_CODECS: Final[Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]] = {
    "gzip": (codec.gzip_encode, codec.gzip_decode),
    "snappy": (codec.snappy_encode, codec.snappy_decode),
    "lz4": (codec.lz4_encode, codec.lz4_decode),
    "zstd": (codec.zstd_encode, codec.zstd_decode),
}
"""What a record may be compressed with, and how aiokafka does it."""


async def examine(url: str, advice: str, *, new: Layout, asked: Collection[str] = ()) -> list[Check]:
    """See ``BusDriver.examine``."""
    admin = AIOKafkaAdminClient(**servers(url).options, request_timeout_ms=int(_ANSWER_S * 1000))
    try:
        async with asyncio.timeout(_ANSWER_S):
            await admin.start()
            brokers = len((await admin.describe_cluster())["brokers"])
            described = await admin.describe_topics()
            found = Check(name="bus", state="ok", found=f"Kafka answers, {brokers} broker{'s' * (brokers > 1)}")
            topics = {topic["topic"]: topic["partitions"] for topic in described}
            events = _events(topics.get(channels.EVENTS_TOPIC, []), brokers, new.partitions)
            if channels.PARTITIONS_TOPIC in topics:
                stored = await stored_layout(servers(url))
                events += _layout(len(topics.get(channels.EVENTS_TOPIC, [])), stored, new, asked)
            return [found, *events, *await _settings(admin, topics)]
    except (KafkaError, OSError) as error:  # TimeoutError is an OSError
        why, is_login = await _why(servers(url))
        if is_login:
            login = "check GRAPHWEFT_BUS_PASSWORD and GRAPHWEFT_BUS_USER, or the login in GRAPHWEFT_BUS_URL"
            return [Check(name="bus", state="fail", found=f"it answers, and refuses the login: {why}", advice=login)]
        reason = why or str(error) or f"nothing within {_ANSWER_S:.0f} s"
        return [Check(name="bus", state="fail", found=f"no answer: {reason}", advice=advice)]
    finally:
        await admin.close()


async def examine_rights(url: str, role: str, *, app_id: str | None, user: str) -> list[Check]:
    """See ``BusDriver.examine_rights``."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            lacking = await missing(servers(url), role, app_id)
    except (KafkaError, OSError) as error:  # TimeoutError is an OSError
        return [Check(name="bus rights", state="fail", found=f"not known: {error}", advice="try again")]
    if not lacking:
        return [Check(name="bus rights", state="ok", found=f"those of a {role}")]
    lines = "\n".join(f"kafka-acls.sh --add --allow-principal User:{user} {options}" for options in lacking)
    advice = f"`graphweft acl kafka --role {role}` prints all of its rights; these are missing:\n{lines}"
    return [Check(name="bus rights", state="fail", found=f"a {role} needs {'; '.join(lacking)}", advice=advice)]


async def responders(url: str) -> list[str]:
    """See ``BusDriver.responders``; a member's name is its number in the group."""
    admin = AIOKafkaAdminClient(**servers(url).options, request_timeout_ms=int(_ANSWER_S * 1000))
    try:
        async with asyncio.timeout(_ANSWER_S):
            await admin.start()
            described: Any = await admin.describe_consumer_groups([channels.CONTEXT_GROUP])
            return [str(number) for number, _ in enumerate(described[0].groups[0][5])]
    except (KafkaError, OSError):  # TimeoutError is an OSError
        return []  # there was never a group
    finally:
        await admin.close()


async def _why(brokers: Servers) -> tuple[str, bool]:
    """Return what ``why_not`` does, if that is found soon."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            return await why_not(brokers)
    return "", False


def _events(partitions: Sequence[Mapping[str, Any]], brokers: int, wanted: int) -> list[Check]:
    name = channels.EVENTS_TOPIC
    if not partitions:
        advice = (
            f"start `graphweft run mutation`, which makes it with {counted(wanted, 'partition')}; for another number "
            "set GRAPHWEFT_PARTITIONS before"
        )
        return [Check(name="bus topic", state="warn", found=f"there is no topic {name} yet", advice=advice)]
    headless = sorted(str(part["partition"]) for part in partitions if part["leader"] < 0)
    if headless:
        found = f"no broker leads partition {', '.join(headless)} of {name}"
        advice = "restart the brokers that hold it: its events wait until then"
        return [Check(name="bus topic", state="fail", found=found, advice=advice)]
    checks = [Check(name="bus topic", state="ok", found=f"{name} has {counted(len(partitions), 'partition')}")]
    copies = min(len(part["replicas"]) for part in partitions)
    behind = sum(len(part["isr"]) < len(part["replicas"]) for part in partitions)
    if copies == 1:
        found = "one copy of each event: it is lost with its broker's disk"
        advice = (
            f"put the topics on {min(brokers, _COPIES)} brokers with kafka-reassign-partitions.sh"
            if brokers > 1
            else f"run {_COPIES} brokers where events must not be lost: new topics then get {_COPIES} copies"
        )
        checks.append(Check(name="bus disk", state="warn", found=found, advice=advice))
    elif behind:
        found = f"copies of {counted(behind, 'partition')} are behind or unavailable"
        advice = "see that all brokers run: until then fewer copies hold the latest events"
        checks.append(Check(name="bus disk", state="warn", found=found, advice=advice))
    else:
        checks.append(Check(name="bus disk", state="ok", found=f"{copies} copies of each event"))
    return checks


def _layout(present: int, stored: Layout | None, new: Layout, asked: Collection[str]) -> list[Check]:
    """Compare the layout with the existing partitions and with the settings."""
    if not present or stored is None:  # the next process writes it
        return []
    name, keyed = "bus partitions", stored.partitions
    if keyed > present:
        found = (
            f"{channels.PARTITIONS_TOPIC} says {keyed}, but {channels.EVENTS_TOPIC} has {present}: no event is accepted"
        )
        advice = f"the topic was recreated with fewer: delete {channels.PARTITIONS_TOPIC} too, restart all processes"
        return [Check(name=name, state="fail", found=found, advice=advice)]
    spread = f"the bus spreads apps over {counted(keyed, 'partition')}"
    if present > keyed:
        spread = f"the bus spreads apps over the first {keyed} of {present} partitions: added ones do not move them"
    warnings = layout_checks(stored, new, asked, spread)
    if any(warning.name == name for warning in warnings):
        return warnings
    return [Check(name=name, state="ok", found=spread), *warnings]


async def _settings(admin: AIOKafkaAdminClient, topics: Mapping[str, Any]) -> list[Check]:
    """Check the settings of the existing topics: an operator may have created them."""
    checks: list[Check] = []
    compressed: list[str] = []
    for topic in _LOOKS:
        if topic not in topics:
            continue
        try:
            settings = await _settings_of(admin, topic)
        except KafkaError as error:  # the login may not read them
            advice = f"nothing, if its operator sees to cleanup.policy and retention of {topic}"
            checks.append(Check(name=f"{topic} settings", state="warn", found=f"not shown: {error}", advice=advice))
            continue
        checks += _LOOKS[topic](settings)
        if settings.get("compression.type", _AS_SENT) != _AS_SENT:
            compressed.append(f"{topic} has compression.type {settings['compression.type']}")
    return [_codecs(compressed), *checks]


def _codecs(compressed: Sequence[str]) -> Check:
    """Pack and unpack with each codec: a producer, or the setting of a topic, chooses it."""
    broken: list[str] = []
    for name, (pack, unpack) in _CODECS.items():
        try:
            works = unpack(pack(_TEXT)) == _TEXT
        except Exception:  # noqa: BLE001 - whatever it is, records of this codec cannot be read
            works = False
        if not works:
            broken.append(name)
    found = f"{'; '.join(compressed)}; " if compressed else ""
    if not broken:
        return Check(name="bus codecs", state="ok", found=f"{found}{', '.join(_CODECS)} can be read")
    found += f"records compressed with {' or '.join(broken)} cannot be read: they become dead letters"
    return Check(name="bus codecs", state="fail", found=found, advice="pip install 'graphweft[kafka]'")


async def _settings_of(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    responses: Any = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    code, message, _, _, entries = responses[0].resources[0]
    if code:
        raise for_code(code)(message)
    return {str(entry[0]): str(entry[1]) for entry in entries}


def _kept(settings: Mapping[str, str]) -> list[Check]:
    name = channels.EVENTS_TOPIC
    if "compact" in settings["cleanup.policy"]:
        found = f"{name} has cleanup.policy {settings['cleanup.policy']}: of a chat Kafka keeps the last event only"
        advice = f"set cleanup.policy=delete on {name} at once, with kafka-configs.sh"
        return [Check(name="bus retention", state="fail", found=found, advice=advice)]
    limits = [f"{key} {settings[key]}" for key in ("retention.ms", "retention.bytes") if settings[key] != _NO_LIMIT]
    if limits:
        found = f"{name} has {' and '.join(limits)}: Kafka drops older events, read or not"
        advice = (
            f"set retention.ms=-1 and retention.bytes=-1 on {name}, or archive the log (GRAPHWEFT_ARCHIVE_URL, "
            "`graphweft run archive`), and see that workers and archive are never so far behind"
        )
        checks = [Check(name="bus retention", state="warn", found=found, advice=advice)]
    else:
        checks = [Check(name="bus retention", state="ok", found="events are kept for good")]
    if int(settings["max.message.bytes"]) <= MAX_EVENT_BYTES:
        found = f"{name} has max.message.bytes {settings['max.message.bytes']}: larger events are refused"
        advice = f"set max.message.bytes of {name} to Kafka's default of 1048588 at least"
        checks.append(Check(name="bus event size", state="warn", found=found, advice=advice))
    if settings["message.timestamp.type"] != LOG_TIME:
        found = f"{name} has message.timestamp.type {settings['message.timestamp.type']}: producers choose the times"
        advice = f"{how_to_set_times(name)}; {TIMES_MATTER}"
        checks.append(Check(name="bus times", state="fail", found=found, advice=advice))
    return checks


def _compacted(settings: Mapping[str, str]) -> list[Check]:
    name = channels.DEAD_LETTERS_TOPIC
    if settings["cleanup.policy"] == "compact":
        return []
    found = f"{name} has cleanup.policy {settings['cleanup.policy']}: Kafka drops letters by their age"
    advice = f"set cleanup.policy=compact on {name}, with kafka-configs.sh"
    return [Check(name="dead letters topic", state="fail", found=found, advice=advice)]


def _for_good(settings: Mapping[str, str]) -> list[Check]:
    name = channels.PARTITIONS_TOPIC
    limits = [f"{key} {settings[key]}" for key in ("retention.ms", "retention.bytes") if settings[key] != _NO_LIMIT]
    if not limits or "delete" not in settings["cleanup.policy"]:
        return []
    found = f"{name} has {' and '.join(limits)}: without its record, chats move when partitions were added"
    advice = f"set retention.ms=-1 and retention.bytes=-1 on {name}, with kafka-configs.sh"
    return [Check(name="partitions topic", state="fail", found=found, advice=advice)]


def _tells_time(settings: Mapping[str, str]) -> list[Check]:
    if settings["message.timestamp.type"] == LOG_TIME:
        return []
    name, kind = channels.USAGE_TOPIC, settings["message.timestamp.type"]
    found = f"{name} has message.timestamp.type {kind}: no role finds that its clock is wrong"
    return [Check(name="usage topic", state="warn", found=found, advice=how_to_set_times(name))]


_LOOKS: Final[Mapping[str, Callable[[Mapping[str, str]], list[Check]]]] = {
    channels.EVENTS_TOPIC: _kept,
    channels.DEAD_LETTERS_TOPIC: _compacted,
    channels.PARTITIONS_TOPIC: _for_good,
    channels.USAGE_TOPIC: _tells_time,
}
