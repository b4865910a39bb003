"""Turns the answer of a model into the structure of an event. Pure; never raises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from graphweft_contracts.episodes import ANY_TYPE, TYPE_PATTERN, EntityName, EpisodeEntity, EpisodeRelation, Structure
from graphweft_workers.features.episodes.ontologies import Ontology

_MOST: Final = 1_000
_LONGEST_NAME: Final = 256
_LONGEST_FACT: Final = 4_096
_MOST_BYTES: Final = 400_000
"""Limit for entities, and for relations, as JSON; an event with both fits on the bus."""
_DEFAULT_RELATION: Final = "RELATED_TO"
_TYPE: Final = re.compile(TYPE_PATTERN)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidEntity:
    """An entity as a model named it."""

    type: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidRelation:
    """A relation as a model named it; ``source`` and ``target`` are indexes in the list of entities."""

    type: str
    source: int | None
    target: int | None
    fact: str
    valid_from: datetime | None = None
    valid_to: datetime | None = None


def shaped(entities: Sequence[SaidEntity], relations: Iterable[SaidRelation], ontology: Ontology | None) -> Structure:
    """Return the structure of an ``episode.extracted`` event that fits the ontology.

    Drops entities without a name or with one of more than 256 characters, relations with an unknown or dropped end, and
    all beyond 1,000 entities or relations, or 400 kB of either. Cuts long facts, turns relation types into valid names,
    and drops ``valid_to`` if it is before ``valid_from``.
    """
    named = [_entity(said) for said in entities]
    known: dict[tuple[str, str], EpisodeEntity] = {(each.type, each.name): each for each in named if each is not None}
    kept = _within(known.values())
    keys = {(each.type, each.name) for each in kept}
    # Also of what does not fit into the event, and in what is cut off: a rest of a password is a password.
    hidden = None if ontology is None else ontology.hidden((said.type, _plain(said.name)) for said in entities)
    found: dict[str, EpisodeRelation] = {}
    for said in relations:
        source, target = (_at(named, place) for place in (said.source, said.target))
        if source is None or target is None or not {(e.type, e.name) for e in (source, target)} <= keys:
            continue
        if hidden and hidden.are_in(f"{said.type} {_plain(said.fact)}"):
            continue
        relation = _relation(said, source, target)
        found.setdefault(relation.model_dump_json(), relation)
    structure = Structure(entities=tuple(kept), relations=tuple(_within(found.values())))
    return structure if ontology is None else ontology.fit(structure, hidden)


def _entity(said: SaidEntity) -> EpisodeEntity | None:
    name = _plain(said.name)
    if not 0 < len(name) <= _LONGEST_NAME:
        return None
    return EpisodeEntity(type=said.type if _TYPE.fullmatch(said.type) else ANY_TYPE, name=name)


def _at(entities: Sequence[EpisodeEntity | None], place: int | None) -> EpisodeEntity | None:
    return entities[place] if place is not None and 0 <= place < len(entities) else None


def _relation(said: SaidRelation, source: EpisodeEntity, target: EpisodeEntity) -> EpisodeRelation:
    since, until = _time(said.valid_from), _time(said.valid_to)
    if since is not None and until is not None and until < since:
        until = None
    return EpisodeRelation(
        type=_relation_type(said.type),
        source=EntityName(type=source.type, name=source.name),
        target=EntityName(type=target.type, name=target.name),
        fact=_plain(said.fact)[:_LONGEST_FACT],
        valid_from=since,
        valid_to=until,
    )


def _relation_type(said: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", said).strip("_")[:64]
    return name if _TYPE.fullmatch(name) else _DEFAULT_RELATION


def _time(when: datetime | None) -> datetime | None:
    return when.replace(tzinfo=UTC) if when is not None and when.utcoffset() is None else when


def _plain(text: str) -> str:
    """Return the text without control characters and lone surrogates, with single blanks."""
    return " ".join(_CONTROL.sub(" ", _SURROGATE.sub("", text)).split())


def _within[T: (EpisodeEntity, EpisodeRelation)](items: Iterable[T]) -> list[T]:
    """Return the first items that fit into an event."""
    kept: list[T] = []
    size = 0
    for item in items:
        size += len(item.model_dump_json().encode())
        if len(kept) == _MOST or size > _MOST_BYTES:
            break
        kept.append(item)
    return kept
