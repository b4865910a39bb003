"""One ontology, and what it makes of what an episode says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import cleandoc
from typing import Any

from pydantic import BaseModel, create_model

from graphweft_contracts import InvalidEvent
from graphweft_contracts.episodes import ANY_TYPE, EntityName, EpisodeEntity, EpisodeRelation, Structure
from graphweft_rules.findings import did_you_mean


class OntologyError(InvalidEvent):
    """An episode that does not fit its ontology, or one whose ontology does not exist."""


def type_model(name: str, description: str) -> type[BaseModel]:
    """Return a type of entities or relations: a model without fields whose docstring says what the type means."""
    model: type[BaseModel] = create_model(name)
    model.__doc__ = description
    return model


@dataclass(frozen=True, kw_only=True)
class Ontology:
    """The types of entities and relations of a schema; the docstring of a type says what it means to a model.

    ``edge_type_map`` is (type of source, type of target) -> types of relations, where ``Entity`` is any type. Every
    ontology knows the type ``Entity`` for what no other type fits. What is of an excluded type is left out.
    """

    schema_id: str
    entity_types: Mapping[str, type[BaseModel]]
    edge_types: Mapping[str, type[BaseModel]]
    edge_type_map: Mapping[tuple[str, str], tuple[str, ...]]
    excluded_entity_types: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that the ontology means, as hexadecimal digits; the order of types means nothing."""
        meaning: list[Any] = [
            self.schema_id,
            sorted((name, cleandoc(model.__doc__ or "")) for name, model in self.entity_types.items()),
            sorted((name, cleandoc(model.__doc__ or "")) for name, model in self.edge_types.items()),
            sorted((*ends, *sorted(set(names))) for ends, names in self.edge_type_map.items()),
            sorted(set(self.excluded_entity_types)),
        ]
        return hashlib.sha256(json.dumps(meaning, ensure_ascii=False).encode()).hexdigest()

    @property
    def allowed_entity_types(self) -> tuple[str, ...]:
        """The types that entities of a structured episode may have; those of excluded types are left out."""
        return (*self.entity_types, *(() if ANY_TYPE in self.entity_types else (ANY_TYPE,)))

    def edge_types_between(self, source: str, target: str) -> tuple[str, ...]:
        """Return the types of relations from one type of entity to another, in the order of ``edge_types``."""
        pairs = {(a, b) for a in (source, ANY_TYPE) for b in (target, ANY_TYPE)}
        found = {name for pair in pairs for name in self.edge_type_map.get(pair, ())}
        return tuple(name for name in self.edge_types if name in found)

    def check(self, said: Structure) -> Structure:
        """Return what a structured episode says without what is of excluded types.

        Raises ``OntologyError`` for a type that the ontology does not have, or not between such entities.
        """
        for number, entity in enumerate(said.entities):
            self._check_entity(entity.type, f"entities[{number}].type")
        for number, relation in enumerate(said.relations):
            for end, named in (("source", relation.source), ("target", relation.target)):
                if isinstance(named, EntityName):
                    self._check_entity(named.type, f"relations[{number}].{end}.type")
        kept = self._without_excluded(said)
        for number, relation in enumerate(said.relations):
            where = f"relations[{number}].type"
            if relation.type not in self.edge_types:
                raise OntologyError(self._unknown(where, relation.type, tuple(self.edge_types)))
            if relation not in kept.relations:
                continue  # an end of it is left out
            ends = said.entity(relation.source).type, said.entity(relation.target).type
            allowed = self.edge_types_between(*ends)
            if relation.type not in allowed:
                msg = (
                    f"{where}: {self.schema_id} has no {relation.type!r} from {ends[0]!r} to {ends[1]!r}; between "
                    f"these it has {', '.join(allowed) or 'no relations'}"
                )
                raise OntologyError(msg)
        return kept

    def fit(self, said: Structure) -> Structure:
        """Return what a model says, as the ontology has it: never raises, for models invent types.

        An entity of a type that does not exist becomes one of type ``Entity``; a relation keeps the type that the model
        gave. What is of excluded types is left out.
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
        return self._without_excluded(Structure(entities=tuple(entities), relations=tuple(relations)))

    def _check_entity(self, type: str, where: str) -> None:
        if type not in self.allowed_entity_types:
            raise OntologyError(self._unknown(where, type, self.allowed_entity_types))

    def _unknown(self, where: str, type: str, allowed: tuple[str, ...]) -> str:
        return f"{where}: {self.schema_id} has no type {type!r}{did_you_mean(type, allowed)}: use {', '.join(allowed)}"

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
