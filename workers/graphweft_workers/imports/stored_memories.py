"""Makes ``memory.add`` events of memories that another store holds, one event for each.

The id of an event derives from the item's id, scope, speaker and text. So the same item gives the same event, and a
second import adds nothing. Metadata goes along in the event, for rules; memory does not store it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from graphweft_contracts import MemoryScope
from graphweft_contracts.memory import MEMORY_ROLES, SCOPES, derived_id
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.report import RefusedItem
from graphweft_workers.imports.stored_events import ImportedItem, make_event

MEMORY: Final = "memories"
_MEM0_SCOPES: Final = {"user_id": "user_id", "agent_id": "agent_id", "run_id": "thread_id", "app_id": "application_id"}
_SCOPES: Final = {name: name for name in SCOPES}
_MEM0_IGNORED: Final = frozenset({"hash", "score", "created_at", "embedding", "text_lemmatized"})


class Mem0:
    """Reads what ``get_all`` of mem0 returns."""

    sections = ("results", "memories")
    source = "/import/mem0"
    ends = ("expiration_date", "expires_at")

    def event_of(self, item: Fields, app_id: str, otherwise: MemoryScope | None) -> ImportedItem:
        """Return the event of an item. Raises ``RefusedItem``."""
        if "new_memory" in item or "old_memory" in item:
            raise RefusedItem("it is an entry of a history, which names no user: import what get_all returns")
        text = item.text("memory")
        role = item.text("role") or item.text("attributed_to")
        made = _memory(
            self.source,
            app_id,
            item.scope(_MEM0_SCOPES, otherwise),
            id=item.text("id"),
            text=text,
            role=role if role in MEMORY_ROLES else "user",
            author=item.text("actor_id"),
            time=item.time("updated_at") or item.time("created_at"),
            ends=item.time("expiration_date", past=False) or item.time("expires_at", past=False),
            metadata=item.object("metadata"),
            field="memory",
        )
        item.rest(_MEM0_IGNORED)
        return made


class PlainMemories:
    """Reads memories with the field names of graphweft, for any other store."""

    sections = ("memories", "results")
    source = "/import/memories"
    ends = ("expires_at",)

    def event_of(self, item: Fields, app_id: str, otherwise: MemoryScope | None) -> ImportedItem:
        """Return the event of an item. Raises ``RefusedItem``."""
        if "app_id" in item and item.text("app_id") != app_id:
            raise RefusedItem("app_id: it names another app than --app: import the items of one app at a time")
        role = item.text("role") or "user"
        if role not in MEMORY_ROLES:
            raise RefusedItem(f"role: expected one of {', '.join(MEMORY_ROLES)}")
        made = _memory(
            self.source,
            app_id,
            item.scope(_SCOPES, otherwise),
            id=item.text("id"),
            text=item.text("text"),
            role=role,
            author=item.text("author_name"),
            time=item.time("time"),
            ends=item.time("expires_at", past=False),
            metadata=item.object("metadata"),
            field="text",
        )
        item.rest(frozenset())
        return made


def _memory(
    source: str,
    app_id: str,
    scope: MemoryScope,
    *,
    id: str | None,
    text: str | None,
    role: str,
    author: str | None,
    time: datetime | None,
    ends: datetime | None,
    metadata: Mapping[str, Any],
    field: str,
) -> ImportedItem:
    if text is None or not text.strip():
        raise RefusedItem(f"{field}: expected some text")
    said = None if time is None else time.isoformat()
    message = {"role": role, "text": text, "time": said, "message_id": id, "author_name": author}
    message["expires_at"] = None if ends is None else ends.isoformat()
    # Without an id, the time tells two equal texts apart.
    name = [id] if id is not None else ["", said or ""]
    given = [scope.given.get(each, "") for each in SCOPES]
    return ImportedItem(
        make_event(
            "memory.add",
            app_id,
            scope,
            {"messages": [{key: value for key, value in message.items() if value is not None}]}
            | ({"metadata": dict(metadata)} if metadata else {}),
            id=derived_id(source, *name, *given, role, author or "", text),
            source=source,
            time=time,
        ),
        MEMORY,
        time,
    )
