"""Whose entries are erased. Entries are read leniently: one that breaks the contract holds personal data too. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from graphweft_contracts import wire
from graphweft_contracts.episodes import episode_id
from graphweft_contracts.memory import memory_id
from graphweft_workers.ports.event_log import Entry

_NOTHING: dict[str, Any] = {}
_ADDS: Final = frozenset({"memory.add", "episode.add"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryNames:
    """What an entry says about itself, whether it is a valid event or not."""

    app_id: str
    chat_id: str
    type: str
    key: tuple[str, str]
    """Source and id."""
    users: frozenset[str]
    messages: int
    """How many memories it creates, if it creates some."""
    made_of: frozenset[str]
    """Memories whose vector or summary it holds, and the episode that a model read."""
    unreadable: bytes = b""
    """Its content, if that is not JSON."""

    def mentions(self, name: str) -> bool:
        """Tell whether content that is not JSON has a name as JSON writes it: a text, or a number of digits."""
        written = {json.dumps(name), json.dumps(name, ensure_ascii=False)}
        if any(each.encode(errors="surrogatepass") in self.unreadable for each in written):
            return True
        return name.isdecimal() and re.search(rb"(?<![\w.])%b(?![\w.])" % name.encode(), self.unreadable) is not None


@dataclass(slots=True, kw_only=True)
class Subject:
    """Whose entries are erased: an app's, or one user's."""

    app_id: str
    user_id: str | None = None
    alone: set[str] = field(default_factory=set[str])
    """Chats that the user began."""
    shared: set[str] = field(default_factory=set[str])
    """Chats in which somebody else has an event."""
    said: set[str] = field(default_factory=set[str])
    """Ids of the user's memories and episodes: what models made of them is the user's too."""
    _chats: set[str] = field(default_factory=set[str])
    _added: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    """By source and id of each event that adds memories or an episode: whether the first one is the user's. Others are
    copies."""

    def learn(self, entries: Iterable[Entry]) -> None:
        """Take note of the chats and memories of the user. Call it with all entries, in order, before ``holds``."""
        if self.user_id is None:
            return
        for entry in entries:
            named = named_of(entry)
            if named is None or named.app_id != self.app_id:
                continue
            if named.users - {self.user_id}:
                self.shared.add(named.chat_id)
            elif named.users and named.chat_id not in self._chats:
                self.alone.add(named.chat_id)
            self._chats.add(named.chat_id)
            if named.type in _ADDS and self._added.setdefault(named.key, self.user_id in named.users):
                self.said.update(memory_id(*named.key, number) for number in range(named.messages))
                self.said.add(episode_id(*named.key))

    def holds(self, entry: Entry) -> bool:
        """Tell whether an entry is to be erased."""
        named = named_of(entry)
        if named is None:
            return False
        app_id = named.app_id or (self.app_id if named.mentions(self.app_id) else "")
        if named.unreadable and app_id == self.app_id:
            return self.user_id is None or self.user_id in named.users or named.mentions(self.user_id)
        if named.app_id != self.app_id:
            return False
        if self.user_id is None:
            return True
        if named.users:
            return self.user_id in named.users
        if named.type == "memory.forget":  # it holds ids only, and keeps the memories of others forgotten
            return False
        if self._began(named.chat_id) and named.chat_id not in self.shared:
            return True
        return not self.said.isdisjoint(named.made_of)

    def may_hold(self, entry: Entry) -> bool:
        """Tell whether an entry names no user and stays, but is in a chat in which the user has said something."""
        named = named_of(entry)
        if named is None or named.app_id != self.app_id or self.user_id is None or named.users:
            return False
        return self._began(named.chat_id) and named.chat_id in self.shared

    def _began(self, chat_id: str) -> bool:
        return bool(chat_id) and chat_id in self.alone


def named_of(entry: Entry) -> EntryNames | None:
    """Return what an entry says about itself; None for an erased one, a control entry, and what cannot be read."""
    if entry.erased or wire.DATA not in entry.fields:
        return None
    body = entry.fields[wire.DATA]
    attributes = {
        name[3:].decode(errors="replace"): value.decode(errors="replace")
        for name, value in entry.fields.items()
        if name.startswith(b"ce_")
    }
    try:
        read: Any = json.loads(body)
    except (ValueError, RecursionError):
        read = None
    event = cast("dict[str, Any]", read) if isinstance(read, dict) else _NOTHING
    if attributes:
        event = {**attributes, "data": event}
    data = _mapping(event.get("data"))
    users = (event.get("userid"), data.get("user_id"), _mapping(data.get("context")).get("user_id"))
    messages: Any = data.get("messages")
    ids = [data.get("memory_id"), data.get("episode_id"), *_listed(data.get("memory_ids"))]
    kind = _text(event.get("type"))
    return EntryNames(
        app_id=_text(event.get("appid")),
        chat_id=_text(event.get("chatid")),
        type=kind,
        key=(_text(event.get("source")), _text(event.get("id"))),
        users=frozenset(filter(None, map(_text, users))),
        messages=len(_listed(messages)),
        made_of=frozenset(filter(None, map(_text, ids))) if kind.startswith(("memory.", "episode.")) else frozenset(),
        unreadable=body if read is None else b"",
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else _NOTHING


def _listed(value: Any) -> list[Any]:
    found: list[Any] = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
    return found


def _text(value: Any) -> str:
    """Return a text or a number as text; nothing else names anybody."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
