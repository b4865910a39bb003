"""Random entries of a log: sound events, and events as careless or hostile producers write them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from graphweft_contracts import wire
from graphweft_workers.ports.event_log import Entry

__all__ = ("Case", "Producer", "committed", "entry_of")

_RECEIVED: Final = datetime(2026, 2, 1, tzinfo=UTC)
_FOLDER: Final = Path(__file__).parents[1] / "fixtures/fuzz"
_MOST: Final = 12
"""Entries of a random case."""
_TEXTS: Final = (
    *("", " ", "a", "Ada", "a\nb", " a", "a ", "\0", "a\0b", "\ud800", "x\udfff", "\U0001f600", "\u200b", "\u0130"),
    *("漢" * 100, "a" * 257, "A" * 5_000, "\ufdfa" * 64, "ß" * 200, "e\u0301", "\u1e9b\u0323", "İ" * 300),
    *("`", '"', "'", "\\", "$x", "$context.k", "null", "__Progress", "__gw_row", "__proto__", "<graphiti_episode"),
    *("agent_memory_v1", "2026-02-01T10:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+14:00", "1e999"),
)
_NUMBERS: Final = (
    *(0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, 10**300, 1.5, -0.0, 5e-324, 1e308),
    *(float("inf"), float("nan"), True, False, None),
)
_TIMES: Final = (
    *("2026-02-01T10:00:00Z", "2026-02-01T10:00:00.123456+05:30", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59.9Z"),
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00-14:00", "0001-01-01T23:59:59+23:59"),
    *("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999-14:00", "9999-12-31T00:00:00+14:00"),
    *("9999-12-31T23:59:59-23:59", "2026-02-30T10:00:00Z", "2016-12-31T23:59:60Z", 0, -1, 1e9, 1e18, -62135596800),
    *(253402300799, 253402300799.999999, "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z"),
)
_RETRIES: Final = (
    *(b"", b"null", b"[]", b"\xff", b'["l"]', b'["l", "memory.add", "*"]', b'["l", "gone", "*", true]', b"[1, 2, 3]"),
    *(b'["l", "memory.add", "add"]', b'["l", "episode.add", "attributes"]', b'["l", "memory.erase", "erase"]'),
    *(b'["l", "graphweft:extract", "extract"]', b'["l", "seen", "made", true]', b'["l", "seen", "made"]'),
    *(b'["l", "seen", "gone", true]', b'["\\ud800", "seen", "made"]', b'["l", "seen", "made", 1]'),
)
_KEYS: Final = (
    *("id", "name", "type", "source", "target", "fact", "valid_from", "valid_to", "k", "items", "context", "`", "a b"),
    *("", "\0", "\ud800", "$k", "a" * 300),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Entries that are read as one batch. Of some it is known which mutations they come to."""

    entries: tuple[Entry, ...]
    sound: Mapping[str, tuple[str, ...]]
    """Offset -> names of mutations in their order."""


def entry_of(number: int, fields: Mapping[bytes, bytes]) -> Entry:
    """Return an entry as a bus gives it."""
    return Entry(offset=f"{1_700_000_000_000 + number}-0", fields=fields, received=_RECEIVED)


def committed() -> Iterator[tuple[str, Case]]:
    """Yield the cases of the corpus with their names. Byte ``ff``, say, stands there as ``\\udcff``.

    Each is followed by a sound event of another app: what one entry does must not reach the next.
    """
    for path in sorted(_FOLDER.glob("*.json")):
        entries: list[Entry] = []
        for number, fields in enumerate(json.loads(path.read_text("utf-8"))["entries"]):
            encoded = {
                name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
                for name, value in fields.items()
            }
            entries.append(entry_of(number, encoded))
        producer = Producer(1)
        last, names = producer.sound(len(entries), appid="neighbour")
        yield path.stem, Case(entries=(*entries, last), sound={last.offset: names})


class Producer:
    """Random cases; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self._kinds: Mapping[str, Callable[[], Any]] = {
            "memory.add": self._memory_add,
            "memory.embedded": self._memory_embedded,
            "memory.summarized": self._memory_summarized,
            "memory.update": self._memory_update,
            "memory.forget": lambda: {"memory_ids": self._often(["m1"], 0.6)},
            "memory.erase": lambda: {"user_id": self._often("u", 0.7), **self._perhaps("before", self._time)},
            "episode.add": self._episode_add,
            "episode.extracted": self._episode_extracted,
            "thing.seen": self._free,
            "agent.turn_complete": self._free,
            "nobody.cares": self._free,
        }

    def case(self) -> Case:
        """Return the next batch of entries."""
        entries: list[Entry] = []
        sound: dict[str, tuple[str, ...]] = {}
        for number in range(self._random.randint(2, _MOST)):
            if self._random.random() < 0.2:
                entry, sound[entry.offset] = self.sound(number)
            elif entries and self._random.random() < 0.03:
                entry = entry_of(number, self._random.choice(entries).fields)  # a copy
            else:
                entry = entry_of(number, self._hostile())
            entries.append(entry)
        return Case(entries=tuple(entries), sound=sound)

    def sound(self, number: int, *, appid: str | None = None) -> tuple[Entry, tuple[str, ...]]:
        """Return an entry that nothing is wrong with, and the mutations that it comes to."""
        ada = {"type": "Person", "name": "Ada", "role": "lead", "description": "Tall."}
        owns = {"type": "OWNS", "source": "Ada", "target": "Shop"}
        content = {"entities": [ada, {"type": "Project", "name": "Shop"}], "relations": [owns]}
        kind, data, names = self._random.choice(
            (
                ("memory.add", {"user_id": "u", "messages": [{"role": "user", "text": "hello"}]}, ("add",)),
                (
                    "episode.add",
                    {"user_id": "u", "episode_type": "json", "content": content},
                    ("add", "entities", "attributes", "relations"),
                ),
                ("thing.seen", {"id": "t", "name": "Lamp", "items": [{"id": 1}]}, ("made", "listed")),
            )
        )
        event = {**self._envelope(kind), "data": data}
        if appid is not None:
            event["appid"] = appid
        fields = {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps(event).encode()}
        return entry_of(number, fields), names

    def _envelope(self, kind: str) -> dict[str, Any]:
        self._number += 1
        return {
            "specversion": "1.0",
            "id": f"e{self._number}",
            "source": "/fuzz",
            "type": kind,
            "time": "2026-02-01T10:00:00Z",
            "appid": self._random.choice(("acme", "neighbour")),
            "chatid": self._random.choice(("c1", "c2")),
            "workflow": "Fuzz",
        }

    def _hostile(self) -> dict[bytes, bytes]:
        """Return the fields of an entry: an event with something odd in it, or what is not even an event."""
        random = self._random
        kind = random.choice(tuple(self._kinds))
        event = self._envelope(kind)
        event["data"] = {**self._data(kind), **self._perhaps("context", self._any, 0.1)}
        if random.random() < 0.4:
            event["time"] = self._time()
        if random.random() < 0.15:
            event[random.choice((*event, "userid", "subject", "sequence", "recordedtime", "dataref", "x1", "X"))] = (
                self._any()
            )
        if random.random() < 0.02:
            del event[random.choice(tuple(event))]
        data = json.dumps(event).encode()
        if random.random() < 0.03:
            data = self._broken(data)
        fields = {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: data}
        if random.random() < 0.03:
            fields = self._in_binary(event)
        if random.random() < 0.04:
            fields[wire.RETRY] = random.choice(_RETRIES)
        if random.random() < 0.01:
            del fields[random.choice(tuple(fields))]
        return fields

    def _broken(self, data: bytes) -> bytes:
        place = self._random.randrange(len(data))
        if self._random.random() < 0.5:
            return data[:place]
        return data[:place] + self._random.randbytes(1) + data[place + 1 :]

    def _in_binary(self, event: dict[str, Any]) -> dict[bytes, bytes]:
        attributes = {name: value for name, value in event.items() if name != "data"}
        fields = {
            b"ce_" + name.encode("utf-8", "replace"): str(value).encode("utf-8", "replace")
            for name, value in attributes.items()
        }
        return {**fields, wire.CONTENT_TYPE: b"application/json", wire.DATA: json.dumps(event.get("data")).encode()}

    # --- values ---

    def _any(self, depth: int = 0) -> Any:
        random = self._random
        chance = random.random()
        if chance < 0.4:
            return random.choice(_TEXTS)
        if chance < 0.65 or depth > 4:
            return random.choice(_NUMBERS)
        if chance < 0.8:
            return [self._any(depth + 1) for _ in range(random.randint(0, 4))]
        if chance < 0.81:
            return self._deep(random.choice((20, 100, 150, 190, 250)))
        return {random.choice(_KEYS): self._any(depth + 1) for _ in range(random.randint(0, 4))}

    def _deep(self, levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value] if self._random.random() < 0.5 else {"k": value}
        return value

    def _often(self, value: Any, chance: float = 0.9) -> Any:
        """Return the value, or sometimes any."""
        return value if self._random.random() < chance else self._any()

    def _time(self) -> Any:
        return self._random.choice(_TIMES)

    def _perhaps(self, name: str, make: Callable[[], Any], chance: float = 0.4) -> dict[str, Any]:
        return {name: make()} if self._random.random() < chance else {}

    def _several(self, make: Callable[[], Any], most: int) -> list[Any]:
        return [make() for _ in range(self._random.randint(0, most))]

    def _scope(self) -> dict[str, Any]:
        names = ("user_id", "agent_id", "application_id", "thread_id")
        return {"user_id": self._often("u", 0.95)} | {
            name: self._often("s") for name in names if self._random.random() < 0.15
        }

    # --- payloads ---

    def _data(self, kind: str) -> dict[str, Any]:
        data = self._kinds[kind]()
        if self._random.random() < 0.05:
            data[self._random.choice((*data, *_KEYS))] = self._any()
        return data

    def _memory_add(self) -> dict[str, Any]:
        return {**self._scope(), "messages": self._often([self._message() for _ in range(self._random.randint(1, 3))])}

    def _message(self) -> dict[str, Any]:
        return {
            "role": self._often(self._random.choice(("user", "assistant", "system")), 0.97),
            "text": self._often("I like nuts.", 0.8),
            **self._perhaps("time", self._time),
            **self._perhaps("message_id", lambda: self._often("m1", 0.7), 0.2),
            **self._perhaps("author_name", lambda: self._often("Ann", 0.7), 0.2),
            **self._perhaps("expires_at", self._time, 0.2),
            **self._labels(),
        }

    def _memory_update(self) -> dict[str, Any]:
        return {
            "memory_id": self._often("m1"),
            **self._perhaps("text", lambda: self._often("I like tea.", 0.8), 0.8),
            **self._perhaps("time", self._time),
            **self._labels(),
            **self._perhaps("pinned", lambda: self._often(True)),
            **self._perhaps(
                "expires_at", lambda: self._often("never", 0.3) if self._often(True) else self._time(), 0.3
            ),
        }

    def _labels(self) -> dict[str, Any]:
        return {
            **self._perhaps("tags", lambda: self._often(["home", self._often("x")]), 0.2),
            **self._perhaps("metadata", lambda: self._often({"n": self._any()}), 0.2),
        }

    def _memory_embedded(self) -> dict[str, Any]:
        vector = [self._random.choice((0.1, 1, 0, 1e38, 1e39, 5e-324, -1)) for _ in range(3)]
        return {"memory_id": self._often("m1"), "model": self._often("m"), "embedding": self._often(vector)}

    def _memory_summarized(self) -> dict[str, Any]:
        fact = {"subject": "Ann", "predicate": "has", "object": self._often("a dog"), "valid_from": self._time()}
        preference = {"text": self._often("tea"), **self._perhaps("stated_at", self._time)}
        return {
            **self._scope(),
            "summary": self._often("They talked."),
            "memory_ids": self._often(["m1", "m2"]),
            "model": self._often("m"),
            "facts": self._often([fact]),
            "preferences": self._often([preference]),
        }

    def _episode_add(self) -> dict[str, Any]:
        said: Any = self._often(
            {"entities": self._several(self._entity, 3), "relations": self._several(self._relation, 2)}
        )
        if self._random.random() < 0.3:
            said = json.dumps(said)
        return {
            **self._scope(),
            "episode_type": self._often("json", 0.85),
            "content": said,
            **self._perhaps("schema_id", lambda: self._often("agent_memory_v1"), 0.2),
            **self._perhaps("reference_time", self._time),
        }

    def _episode_extracted(self) -> dict[str, Any]:
        return {
            **self._scope(),
            "episode_id": self._often("e1"),
            "reference_time": self._time(),
            "model": "m",
            "entities": self._often(self._several(self._entity, 2)),
            "relations": self._often(self._several(self._relation, 1)),
        }

    def _entity(self) -> dict[str, Any]:
        names = ("role", "email", "description", "summary", "rank", "graph", "_x", "user_id", *_KEYS)
        given = {self._random.choice(names): self._often(self._random.choice(_TEXTS), 0.5) for _ in range(2)}
        if self._random.random() < 0.02:
            given |= {f"a{number}": number for number in range(self._random.choice((64, 65, 201, 250)))}
        return {**given, "type": self._often("Person", 0.95), "name": self._often("Ada")}

    def _relation(self) -> dict[str, Any]:
        return {
            "type": self._often("OWNS", 0.95),
            "source": self._often("Ada"),
            "target": self._often({"type": "Project", "name": "Shop"}),
            **self._perhaps("fact", lambda: self._often("Ada owns it.", 0.7)),
            **self._perhaps("valid_from", self._time),
            **self._perhaps("valid_to", self._time),
        }

    def _free(self) -> dict[str, Any]:
        return {
            "agent_name": self._often("A", 0.95),
            "id": self._often("t"),
            "name": self._often("Lamp", 0.7),
            "items": self._often([{"id": self._any(3), "w": self._any()}], 0.7),
            "map": self._often({"a": 1, "b": self._any()}, 0.7),
            "success": self._often(True),
        }
