"""Makes ``episode.add`` events of what Graphiti holds: its episodes, entities and facts, one event for each.

A fact or an entity becomes an episode with JSON, so no model reads it again. An edge names its ends by ids, so entities
come before the edges that need them. The id of an event derives from the item's id, scope and content.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from graphweft_contracts import InvalidEvent, MemoryScope
from graphweft_contracts.episodes import ANY_TYPE, TYPE_PATTERN, EpisodeEntity, Structure
from graphweft_contracts.memory import SCOPES, derived_id
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.report import ImportReport, RefusedItem
from graphweft_workers.imports.stored_events import ImportedItem, make_event

MOST_ENTITIES: Final = 500_000
"""Entities whose names are kept for the edges behind them: about 150 MB."""
_SOURCE: Final = "/import/graphiti"
_NO_GROUPS: Final = frozenset({"_", "\\_"})
"""The group of episodes without one, where a group cannot be empty."""
_ANY_RELATION: Final = "RELATES_TO"
_LONGEST_NAME: Final = 256
_LONGEST_DESCRIPTION: Final = 4_096
_IGNORED: Final = frozenset(
    {"name_embedding", "fact_embedding", "entity_edges", "episodes", "labels", "created_at", "expired_at"}
)
_OWN_FIELDS: Final = frozenset({"type", "name", "summary"})
"""What an entity has beside its attributes. Graphiti lets an attribute have such a name, apart from ``name``."""
_DERIVED: Final = frozenset({"Community", "Saga"})
"""Labels of nodes that a model made of others, for searches of Graphiti."""
_STRUCTURED: Final = frozenset({"entities", "relations"})


class Graphiti:
    """Reads nodes and edges as Graphiti's own classes write them as JSON."""

    sections = ("nodes", "entities", "episodes", "edges", "facts")
    ends = ()

    def __init__(self, report: ImportReport, *, group_as: str = "user_id") -> None:
        """``group_as`` is the scope that a ``group_id`` becomes."""
        self._report = report
        self._scopes = {"group_id": group_as}
        self._entities: dict[tuple[str, str], tuple[str, str]] = {}
        """(Group, id) -> type and name. An edge of another group does not find it."""

    def event_of(self, item: Fields, app_id: str, otherwise: MemoryScope | None) -> ImportedItem | None:
        """Return the event of an item, or None for a link or node that holds nothing else. Raises ``RefusedItem``."""
        if "content" in item:
            make = self._episode
        elif "fact" in item:
            make = self._fact
        elif "source_node_uuid" in item:
            self._report.leave_out("edges without a fact")
            return None
        elif "name" in item:
            if not _DERIVED.isdisjoint(item.texts("labels")):
                self._report.leave_out("communities and sagas")
                return None
            make = self._entity
        else:
            raise RefusedItem("expected an episode (content), an entity (name) or a fact (fact)")
        group = item.value("group_id")
        none = isinstance(group, str) and group in _NO_GROUPS
        scope = item.scope({} if none else self._scopes, otherwise)
        made = make(item, app_id, scope)
        item.rest(_IGNORED)
        return made

    def _episode(self, item: Fields, app_id: str, scope: MemoryScope) -> ImportedItem:
        content = item.text("content")
        if content is None or not content.strip():
            raise RefusedItem("content: expected some text")
        kind = item.text("source") or "text"
        if kind not in {"text", "message", "json"} or (kind == "json" and not _is_plain_json(content)):
            kind = "text"
        about = item.time("valid_at", past=False) or item.time("reference_time", past=False)
        recorded = item.time("created_at")
        data = {
            "content": content,
            "episode_type": kind,
            "episode_id": item.text("uuid"),
            "name": self._cut(item.text("name"), _LONGEST_NAME),
            "source_description": self._cut(item.text("source_description"), _LONGEST_DESCRIPTION),
        }
        return self._episode_event("episodes", app_id, scope, item, data, about=about or recorded, recorded=recorded)

    def _entity(self, item: Fields, app_id: str, scope: MemoryScope) -> ImportedItem:
        name, id = item.text("name"), item.text("uuid")
        if name is None:
            raise RefusedItem("name: expected some text")
        types = (label for label in item.texts("labels") if label != ANY_TYPE and re.fullmatch(TYPE_PATTERN, label))
        of_type = next(types, ANY_TYPE)
        entity = {"type": of_type, "name": name}
        if id is not None and len(self._entities) < MOST_ENTITIES and len(name) <= _LONGEST_NAME:
            self._entities[item.text("group_id") or "", id] = (of_type, name)
        known = {_attribute(key): value for key, value in item.object("attributes").items()}
        if (summary := item.text("summary")) is not None:
            known["summary"] = summary
        if not _is_storable(entity | known):
            kept = {key: value for key, value in known.items() if _is_storable(entity | {key: value})}
            self._report.leave_out("attributes", len(known) - len(kept))
            known = kept if _is_storable(entity | kept) else {}
        recorded = item.time("created_at")
        content = {"entities": [entity | {key: value for key, value in known.items() if value is not None}]}
        return self._structured("entities", app_id, scope, item, content, about=recorded, recorded=recorded)

    def _fact(self, item: Fields, app_id: str, scope: MemoryScope) -> ImportedItem:
        ends = [dict(zip(("type", "name"), self._end(item, end), strict=True)) for end in ("source", "target")]
        recorded, expired = item.time("created_at"), item.time("expired_at")
        since, until = item.time("valid_at", past=False), item.time("invalid_at", past=False) or expired
        if since is None and recorded is not None:  # it ends with what says so, and holds from when it was known
            since = recorded if until is None else min(recorded, until)
        said = item.text("name") or ""
        named = re.sub(r"[^A-Za-z0-9_]+", "_", said).strip("_")[:64]
        if not re.fullmatch(TYPE_PATTERN, named):
            self._report.leave_out("names of relations that are no types")
            named = _ANY_RELATION
        relation: dict[str, Any] = {
            "type": named,
            "source": ends[0],
            "target": ends[1],
            "fact": item.text("fact") or "",
        }
        for key, time in (("valid_from", since), ("valid_to", until)):
            if time is not None:
                relation[key] = time.isoformat()
        if item.object("attributes"):
            self._report.leave_out("attributes", len(item.object("attributes")))
        content = {"entities": ends if ends[0] != ends[1] else ends[:1], "relations": [relation]}
        # An edge that has ended is about the time of its end, so it wins over an export from before.
        about = expired or recorded or item.time("reference_time", past=False) or since
        return self._structured("facts", app_id, scope, item, content, about=about, recorded=recorded)

    def _end(self, item: Fields, end: str) -> tuple[str, str]:
        id = item.text(f"{end}_node_uuid")
        name = item.text(end)
        if id is not None and (found := self._entities.get((item.text("group_id") or "", id))):
            return found
        if name is not None:
            return (ANY_TYPE, name)
        raise RefusedItem(
            f"{end}_node_uuid: no entity of its group before it has this id: put entities before edges, or name the "
            f"end in {end!r}"
        )

    def _structured(
        self,
        kind: str,
        app_id: str,
        scope: MemoryScope,
        item: Fields,
        content: dict[str, Any],
        *,
        about: datetime | None,
        recorded: datetime | None,
    ) -> ImportedItem:
        try:
            Structure.read(content)
        except InvalidEvent as error:
            raise RefusedItem(str(error)) from None
        data = {"content": content, "episode_type": "json", "episode_id": item.text("uuid")}
        return self._episode_event(kind, app_id, scope, item, data, about=about, recorded=recorded)

    def _episode_event(
        self,
        kind: str,
        app_id: str,
        scope: MemoryScope,
        item: Fields,
        data: dict[str, Any],
        *,
        about: datetime | None,
        recorded: datetime | None,
    ) -> ImportedItem:
        data["reference_time"] = None if about is None else about.isoformat()
        given = {name: value for name, value in data.items() if value is not None}
        scopes = [scope.given.get(each, "") for each in SCOPES]
        id = derived_id(_SOURCE, kind, item.text("uuid") or "", *scopes, json.dumps(given, sort_keys=True))
        return ImportedItem(
            make_event("episode.add", app_id, scope, given, id=id, source=_SOURCE, time=recorded), kind, about
        )

    def _cut(self, text: str | None, most: int) -> str | None:
        if text is not None and len(text) > most:
            self._report.leave_out("ends of long names and descriptions")
            return text[:most]
        return text


def _attribute(name: str) -> str:
    """Return the name of an attribute beside the fields of an entity: it never takes the place of one."""
    return f"attribute_{name}" if name in _OWN_FIELDS else name


def _is_plain_json(content: str) -> bool:
    """Tell whether a text is JSON that a model reads; with the keys of a structured episode it would be read as one."""
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, dict) or _STRUCTURED.isdisjoint(value)  # pyright: ignore[reportUnknownArgumentType]


def _is_storable(entity: dict[str, Any]) -> bool:
    try:
        EpisodeEntity.model_validate(entity)
    except ValidationError:
        return False
    return True
