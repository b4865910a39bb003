"""An ontology, and how it checks the structure of an episode."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from inspect import cleandoc
from typing import Any, Final

from pydantic import BaseModel, create_model

from graphweft_contracts import InvalidEvent
from graphweft_contracts.episodes import ANY_TYPE, EntityName, EpisodeEntity, EpisodeRelation, Structure
from graphweft_contracts.wire import did_you_mean
from graphweft_workers.features.edge_rules import NO_RULE, EdgeRule, TypeEnds, ends_of
from graphweft_workers.text.terms import name_key

_WORD: Final = re.compile(r"[a-z0-9]+|[^\W_]")
"""A letter beyond ASCII is a word of its own, because some scripts have no blanks between words."""
_UNSEEN: Final = frozenset({"Cf", "Mn"})
"""Characters that are not seen, or only at another one: they part no word."""


AFTER_A_CHANGE: Final = "an ontology that was changed or added counts after a restart"


class OntologyError(InvalidEvent):
    """The episode does not fit its ontology, or the ontology does not exist."""


def type_model(name: str, description: str) -> type[BaseModel]:
    """Return a type of entities or relations: a model without fields, whose docstring describes it."""
    model: type[BaseModel] = create_model(name)
    model.__doc__ = description
    return model


@dataclass(frozen=True, kw_only=True)
class Ontology:
    """The types of entities and relations of a schema; docstrings describe them to a model.

    ``edge_type_map`` is (source type, target type) -> relation types, where ``Entity`` means any type. Every ontology
    has the type ``Entity``. Entities of excluded types, and their relations, are dropped. ``edge_rules`` has the types
    of relations that say more than their name.
    """

    schema_id: str
    entity_types: Mapping[str, type[BaseModel]]
    edge_types: Mapping[str, type[BaseModel]]
    edge_type_map: Mapping[tuple[str, str], tuple[str, ...]]
    excluded_entity_types: tuple[str, ...] = ()
    edge_rules: Mapping[str, EdgeRule] = field(default_factory=dict[str, EdgeRule])
    predicate_rules: Mapping[str, EdgeRule] = field(default_factory=dict[str, EdgeRule])
    """What claims of users depend on: says nothing of episodes, so it is not part of the digest."""

    @cached_property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the ontology; the order of types does not matter."""
        meaning: list[Any] = [
            self.schema_id,
            sorted((name, cleandoc(model.__doc__ or "")) for name, model in self.entity_types.items()),
            sorted((name, cleandoc(model.__doc__ or "")) for name, model in self.edge_types.items()),
            sorted((*ends, *sorted(set(names))) for ends, names in self.edge_type_map.items()),
            sorted(set(self.excluded_entity_types)),
        ]
        if self.edge_rules:
            meaning.append(sorted((name, rule.written) for name, rule in self.edge_rules.items()))
        return hashlib.sha256(json.dumps(meaning, ensure_ascii=False).encode()).hexdigest()

    @property
    def allowed_entity_types(self) -> tuple[str, ...]:
        """The entity types of structured episodes, with the excluded types."""
        return (*self.entity_types, *(() if ANY_TYPE in self.entity_types else (ANY_TYPE,)))

    @cached_property
    def ends(self) -> Mapping[str, TypeEnds]:
        """How relations of a type end by rules, for the types of which some do."""
        return ends_of(self.edge_rules)

    @cached_property
    def _stored_types(self) -> Mapping[str, str]:
        """Other names of types, and the types under which relations are stored."""
        return {alias: name for name, rule in self.edge_rules.items() for alias in rule.aliases}

    def edge_types_between(self, source: str, target: str) -> tuple[str, ...]:
        """Return the relation types from one entity type to another, in the order of ``edge_types``."""
        pairs = {(a, b) for a in (source, ANY_TYPE) for b in (target, ANY_TYPE)}
        found = {name for pair in pairs for name in self.edge_type_map.get(pair, ())}
        return tuple(name for name in self.edge_types if name in found)

    def check(self, said: Structure) -> Structure:
        """Return the structure of an episode without excluded types.

        Raises ``OntologyError`` for an unknown type, or a relation type that these entities cannot have.
        """
        for number, entity in enumerate(said.entities):
            self._check_entity(entity.type, f"entities[{number}].type")
        for number, relation in enumerate(said.relations):
            for end, named in (("source", relation.source), ("target", relation.target)):
                if isinstance(named, EntityName):
                    self._check_entity(named.type, f"relations[{number}].{end}.type")
        given = [relation.type for relation in said.relations]
        said = self.stored(said)
        kept = self._without_excluded(said)
        for number, relation in enumerate(said.relations):
            where = f"relations[{number}].type"
            if relation.type not in self.edge_types:
                raise OntologyError(self._unknown(where, given[number], tuple(self.edge_types)))
            if relation not in kept.relations:
                continue  # one end has an excluded type
            ends = said.entity(relation.source).type, said.entity(relation.target).type
            allowed = self.edge_types_between(*ends)
            if relation.type not in allowed:
                msg = (
                    f"{where}: {self.schema_id} has no {relation.type!r} from {ends[0]!r} to {ends[1]!r}; its "
                    f"`edge_type_map` allows {', '.join(allowed) or 'no relations'} between them; {AFTER_A_CHANGE}"
                )
                raise OntologyError(msg)
        return kept

    def stored(self, said: Structure) -> Structure:
        """Return the structure of an episode with each relation as it is stored: once, under one name and direction."""
        if not self.edge_rules:
            return said
        return said.model_copy(update={"relations": tuple(self._stored(each, said) for each in said.relations)})

    def _stored(self, relation: EpisodeRelation, said: Structure) -> EpisodeRelation:
        type, ends = self._stored_types.get(relation.type, relation.type), [relation.source, relation.target]
        rule = self.edge_rules.get(type, NO_RULE)
        if rule.inverse_of is not None:
            type, rule = rule.inverse_of, self.edge_rules.get(rule.inverse_of, NO_RULE)
            ends.reverse()
        if rule.symmetric:
            ends.sort(key=lambda end: (name_key(said.entity(end).name), said.entity(end).type))
        return relation.model_copy(update={"type": type, "source": ends[0], "target": ends[1]})

    def whole(self, said: Structure, reference_time: datetime) -> Structure:
        """Return the structure as it is stored, with the relations that begin with others (``EdgeRule.transition``)."""
        said = self.stored(said)
        begun = [
            relation.model_copy(
                update={
                    "type": into, "fact": "", "valid_from": relation.valid_from or reference_time, "valid_to": None
                }
            )
            for relation in said.relations
            if (into := self.edge_rules.get(relation.type, NO_RULE).transition) is not None
        ]  # fmt: skip
        if not begun:
            return said
        return self.stored(said.model_copy(update={"relations": (*said.relations, *begun)}))

    def hidden(self, named: Iterable[tuple[str, str]]) -> HiddenNames:
        """Return the names of excluded types among types and names that a model has given."""
        excluded = set(self.excluded_entity_types)
        return HiddenNames(name for type, name in named if type in excluded)

    def fit(self, said: Structure, hidden: HiddenNames | None = None) -> Structure:
        """Return the structure that a model found, without excluded types. Never raises.

        Entities of unknown types get the type ``Entity``; relations keep their types. The name of an entity of an
        excluded type is not in the result: neither as an entity of another type, nor in the name of an ``Entity``, nor
        in a relation or its fact. Case, punctuation and invisible characters do not matter. ``hidden`` has further
        names, of what is not in the structure.
        """
        known = set(self.allowed_entity_types)

        def typed(type: str) -> str:
            return type if type in known else ANY_TYPE

        entities = [
            EpisodeEntity(type=typed(entity.type), name=entity.name, **entity.attributes) for entity in said.entities
        ]
        relations: list[EpisodeRelation] = []
        for relation in said.relations:
            ends = {
                end: EntityName(type=typed(meant.type), name=meant.name)
                for end in ("source", "target")
                for meant in [said.entity(getattr(relation, end))]
            }
            relations.append(relation.model_copy(update=ends))
        return self._without_names(Structure(entities=tuple(entities), relations=tuple(relations)), hidden)

    def _check_entity(self, type: str, where: str) -> None:
        if type not in self.allowed_entity_types:
            raise OntologyError(self._unknown(where, type, self.allowed_entity_types))

    def _unknown(self, where: str, type: str, allowed: tuple[str, ...]) -> str:
        near = did_you_mean(type, allowed)
        return f"{where}: {self.schema_id} has no type {type!r}{near}: use {', '.join(allowed)}; {AFTER_A_CHANGE}"

    def _without_excluded(self, said: Structure) -> Structure:
        excluded = set(self.excluded_entity_types)
        if not excluded:
            return said
        return Structure(
            entities=tuple(entity for entity in said.entities if entity.type not in excluded),
            relations=tuple(
                relation
                for relation in said.relations
                if excluded.isdisjoint({said.entity(relation.source).type, said.entity(relation.target).type})
            ),
        )

    def _without_names(self, said: Structure, more: HiddenNames | None) -> Structure:
        """Return the structure of a model's answer without excluded types and without what names their entities.

        A model that lists a password as a Credential may repeat it: as another entity, or in the fact between two
        others.
        """
        excluded = set(self.excluded_entity_types)
        ends = [(said.entity(each.source), said.entity(each.target)) for each in said.relations]
        named = [*((each.type, each.name) for each in said.entities)]
        named += [(end.type, end.name) for pair in ends for end in pair]
        hidden = self.hidden(named)
        if more is not None:
            hidden.add(more)
        if not hidden:
            return said

        def is_kept(entity: EpisodeEntity | EntityName) -> bool:
            if entity.type in excluded or hidden.is_one(entity.name):
                return False
            return entity.type != ANY_TYPE or not hidden.are_in(entity.name)

        return Structure(
            entities=tuple(filter(is_kept, said.entities)),
            relations=tuple(
                relation
                for relation, pair in zip(said.relations, ends, strict=True)
                if all(map(is_kept, pair)) and not hidden.are_in(f"{relation.type} {relation.fact}")
            ),
        )


class HiddenNames:
    """Names that must not be in a text."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {key for name in names if (key := _words(name) or name_key(name))}  # "" is in every text

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, others: HiddenNames) -> None:
        """Add other names."""
        self._names |= others._names

    def is_one(self, name: str) -> bool:
        """Return whether this is one of the names."""
        return (_words(name) or name_key(name)) in self._names

    def are_in(self, text: str) -> bool:
        """Return whether the words of one of the names stand in the text."""
        words = _words(text) or name_key(text)
        return any(name in words for name in self._names)


def _words(text: str) -> str:
    """Return the words between blanks; the empty text if there are none."""
    key = name_key(text)
    if not key.isascii():
        key = "".join(sign for sign in key if unicodedata.category(sign) not in _UNSEEN)
    words = " ".join(_WORD.findall(key))
    return f" {words} " if words else ""
