"""Episodes: texts, messages and JSON, and the entities and relations extracted from them.

Structured JSON states its entities and relations, so it needs no model. For other episodes a model extracts them, and
its answer is an event, so a replay rebuilds the graph without a model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from typing_extensions import Self

from graphweft_contracts.errors import InvalidEvent
from graphweft_contracts.events import Name, Payload, register_payloads
from graphweft_contracts.memory import SCOPE_REQUIRED, ScopedPayload, derived_id
from graphweft_contracts.moments import Moment

EpisodeType = Literal["text", "json", "message"]
ANY_TYPE: Final = "Entity"
"""The type of an entity that fits no other type; in the map of an ontology, any type."""
TYPE_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
"""Types of entities and relations. With ``re`` use ``fullmatch``, because ``$`` also matches before a line end."""
RESERVED_ATTRIBUTES: Final = frozenset(
    {
        *("id", "type", "name", "name_key", "stated", "terms", "length", "scopes", "embedding", "embedding_model"),
        *("application_id", "agent_id", "user_id", "thread_id"),
    }
)
"""Properties of entities that an episode cannot set."""
MOST_ATTRIBUTE_NAMES: Final = 200
"""Limit of different attribute names in one episode: more of them are data rather than names."""
MOST_ATTRIBUTES: Final = 10_000
"""Limit of attributes in one episode: they are written in one query, and other apps wait for it."""

_ATTRIBUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_MOST_CHARACTERS: Final = 1_000_000
_LONGEST_VALUE: Final = 4_096
_MOST_ATTRIBUTES: Final = 64
_MOST: Final = 1_000
_INT64: Final = range(-(2**63), 2**63)
_STRUCTURED: Final = frozenset({"entities", "relations"})

_ATTRIBUTES: Final[dict[str, Any]] = {
    "propertyNames": {"pattern": TYPE_PATTERN, "not": {"enum": sorted(RESERVED_ATTRIBUTES - {"type", "name"})}},
    "maxProperties": _MOST_ATTRIBUTES + 2,
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "maxLength": _LONGEST_VALUE},
            {"type": "number", "minimum": -(2**63), "maximum": 2**63 - 1},
            {"type": "boolean"},
            {"type": "array", "items": {"type": "string", "maxLength": _LONGEST_VALUE}, "maxItems": _MOST},
            {"type": "null"},
        ]
    },
}
"""Attributes, for readers of the JSON Schema."""
_TEXT_OR_JSON: Final[dict[str, Any]] = {
    "if": {"properties": {"episode_type": {"const": "json"}}, "required": ["episode_type"]},
    "else": {"properties": {"content": {"type": "string"}}},
}

_Type = Annotated[str, StringConstraints(pattern=TYPE_PATTERN)]


class EntityName(BaseModel):
    """Which entity is meant, where the name alone may mean several."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    type: _Type
    name: Name


class EpisodeEntity(BaseModel):
    """Something that an episode is about. What stands beside ``type`` and ``name`` are its attributes.

    An attribute is a string, a number, a boolean or a list of strings; null counts as not given.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="allow", json_schema_extra=_ATTRIBUTES)

    type: _Type
    name: Name

    @model_validator(mode="after")
    def _usable(self) -> Self:
        given = self.model_extra or {}
        if len(given) > _MOST_ATTRIBUTES:
            msg = f"an entity has at most {_MOST_ATTRIBUTES} attributes"
            raise ValueError(msg)
        for number, (name, value) in enumerate(given.items(), 1):
            if not _ATTRIBUTE.fullmatch(name):
                msg = "the name of an attribute is a letter, then letters, digits and underscores, 64 at most"
                raise ValueError(msg)
            if name in RESERVED_ATTRIBUTES:
                msg = f"{name!r} is a property that every entity has: give the attribute another name"
                raise ValueError(msg)
            if not _storable(value):
                msg = (
                    f"attribute {number} beside type and name must be a string (at most {_LONGEST_VALUE} characters), "
                    "a finite number of 64 bits, a boolean or a list of strings"
                )
                raise ValueError(msg)
        return self

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name, without nulls."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}


class EpisodeRelation(BaseModel):
    """Something that holds between two entities, from a time on and up to another one.

    ``source`` and ``target`` are the names of entities of the same episode, or say type and name. A relation is the
    same whenever type, both entities, ``fact`` and ``valid_from`` are; of the same relation, the episode that is about
    the latest time says when it ended.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    type: _Type
    source: Name | EntityName
    target: Name | EntityName
    fact: Annotated[str, Field(max_length=_LONGEST_VALUE)] = Field(
        default="", description="The relation as a sentence."
    )
    valid_from: Moment | None = Field(
        default=None, description="Without it, the earliest time that an episode which says so is about."
    )
    valid_to: Moment | None = Field(default=None, description="Without it, the relation has not ended.")


class Structure(BaseModel):
    """What there is to know in an episode: its entities, and the relations between them."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    entities: Annotated[tuple[EpisodeEntity, ...], Field(max_length=_MOST)] = ()
    relations: Annotated[tuple[EpisodeRelation, ...], Field(max_length=_MOST)] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if fault := attributes_fault(entity.attributes for entity in self.entities):
            raise ValueError(fault)
        for number, relation in enumerate(self.relations):
            where = f"relations[{number}]"
            for end in ("source", "target"):
                self._resolve(getattr(relation, end), f"{where}.{end}")
            since, until = relation.valid_from, relation.valid_to
            if since is not None and until is not None and until < since:
                msg = f"{where}.valid_to is before valid_from: a relation cannot end before it begins"
                raise ValueError(msg)
        return self

    @classmethod
    def read(cls, content: Any) -> Self:
        """Return the structure of a content. Raises ``InvalidEvent`` with the location of the fault."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InvalidEvent(fault_of(error)) from None

    def entity(self, named: str | EntityName) -> EntityName:
        """Return the entity at an end of a relation of this structure."""
        return self._resolve(named, "the end of a relation")

    def _resolve(self, named: str | EntityName, where: str) -> EntityName:
        if isinstance(named, EntityName):
            return named
        types = {entity.type for entity in self.entities if entity.name == named}
        if not types:
            msg = f'{where} is the name of no entity of this episode: add it, or write {{"type": …, "name": …}}'
            raise ValueError(msg)
        if len(types) > 1:
            msg = f'{where} is the name of several entities: write {{"type": …, "name": …}}'
            raise ValueError(msg)
        return EntityName(type=types.pop(), name=named)


class EpisodeAdd(ScopedPayload):
    """``episode.add``: an episode is to be remembered, within a scope.

    JSON with the key ``entities`` or ``relations`` is structured: see ``Structure``, whose keys are all that it may
    have. Of any other episode a model says what there is to know (``episode.extracted``).
    """

    model_config = ConfigDict(defer_build=True, json_schema_extra={**SCOPE_REQUIRED, **_TEXT_OR_JSON})

    name: Name | None = None
    content: Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)] | dict[str, Any] = Field(
        description="A text; of a JSON episode an object, or the text of some JSON."
    )
    episode_type: EpisodeType = "text"
    schema_id: Name | None = Field(
        default=None,
        description="The ontology to go by; without it `agent_memory_v1` for a content with `<graphiti_episode`.",
    )
    reference_time: Moment | None = Field(
        default=None, description="The time that the episode is about; without it, the event's time."
    )
    source_description: Annotated[str, Field(max_length=_LONGEST_VALUE)] | None = None
    episode_id: Name | None = Field(default=None, description="The runtime's own name of the episode.")

    @model_validator(mode="after")
    def _textual(self) -> Self:
        if self.episode_type != "json" and not isinstance(self.content, str):
            msg = f"the content of an episode of type {self.episode_type!r} is a text; an object is of type 'json'"
            raise ValueError(msg)
        return self

    @property
    def text(self) -> str:
        """The content as text. An object becomes JSON; equal objects give equal JSON."""
        if isinstance(self.content, str):
            return self.content
        return json.dumps(self.content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @property
    def structure(self) -> Structure | None:
        """The structure of a structured episode; None if a model must extract it.

        Raises ``InvalidEvent`` for invalid JSON, JSON that is too long, and JSON that violates ``Structure``.
        """
        if self.episode_type != "json":
            return None
        if len(self.text) > _MOST_CHARACTERS:
            msg = f"content: it has more than {_MOST_CHARACTERS} characters"
            raise InvalidEvent(msg)
        content: Any = self.content
        if isinstance(content, str):
            try:
                content = json.loads(content)
            except (ValueError, RecursionError):
                msg = "content: it is no JSON, which an episode of type 'json' is: correct it, or give the type 'text'"
                raise InvalidEvent(msg) from None
        if not isinstance(content, dict) or _STRUCTURED.isdisjoint(cast("dict[str, Any]", content)):
            return None
        return Structure.read(content)


class EpisodeExtracted(ScopedPayload):
    """``episode.extracted``: a model has said what there is to know in an episode.

    Said in the chat of the episode, with its scope and reference time; otherwise it has no effect. The first extraction
    of an episode counts, and none of one that is structured.
    """

    episode_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="The id of the episode in the graph."
    )
    reference_time: Moment = Field(description="The time that the episode is about.")
    model: Name = Field(description="Which model.")
    schema_id: Name | None = Field(default=None, description="The ontology that the model went by.")
    entities: Annotated[tuple[EpisodeEntity, ...], Field(max_length=_MOST)] = ()
    relations: Annotated[tuple[EpisodeRelation, ...], Field(max_length=_MOST)] = ()

    @property
    def structure(self) -> Structure:
        """The structure that the model extracted. Raises ``InvalidEvent`` if it violates ``Structure``."""
        return Structure.read({"entities": self.entities, "relations": self.relations})


EPISODES: Final[Mapping[str, type[Payload]]] = {
    "episode.add": EpisodeAdd,
    "episode.extracted": EpisodeExtracted,
}
"""The payload models of the event types about episodes."""
register_payloads(EPISODES)


def episode_id(source: str, event_id: str) -> str:
    """Return the id of the episode that an ``episode.add`` event creates."""
    return derived_id(source, event_id, "episode")


def attributes_fault(entities: Iterable[Collection[str]]) -> str | None:
    """Return the error for too many attributes, or None; ``entities`` holds the attribute names of each entity."""
    names: set[str] = set()
    count = 0
    for entity in entities:
        names.update(entity)
        count += len(entity)
    if len(names) > MOST_ATTRIBUTE_NAMES:
        return (
            f"the entities have {len(names):,} different names of attributes, and an episode has at most "
            f"{MOST_ATTRIBUTE_NAMES}: give equal things equal names, or put names that are data into a value (a list "
            "of strings)"
        )
    if count > MOST_ATTRIBUTES:
        return (
            f"the entities have {count:,} attributes, and an episode has at most {MOST_ATTRIBUTES:,} in all: send "
            "several episodes"
        )
    return None


def fault_of(error: ValidationError, *above: str) -> str:
    """Return the first fault of a payload with its location below ``above``, without any input.

    An unknown key is not quoted, because it may be a misplaced value.
    """
    first = error.errors(include_input=False, include_url=False)[0]
    steps, what = [*above, *first["loc"]], first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        steps.pop()
        what = "a key is not known here: leave it out"
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
    return f"{where}: {what}" if where else what


def _storable(value: Any) -> bool:
    match value:
        case None | bool():
            return True
        case str():
            return len(value) <= _LONGEST_VALUE
        case int():
            return value in _INT64
        case float():
            return math.isfinite(value)
        case list():
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            return len(items) <= _MOST and all(isinstance(item, str) and len(item) <= _LONGEST_VALUE for item in items)
        case _:
            return False
