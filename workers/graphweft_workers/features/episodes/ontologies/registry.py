"""Ontologies by schema id, and the choice of one for an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from graphweft_contracts.wire import did_you_mean
from graphweft_workers.features.edge_rules import NO_RULES, EdgeEnds, EdgeRule
from graphweft_workers.features.episodes.ontologies import agent_memory_v1
from graphweft_workers.features.episodes.ontologies.ontology import AFTER_A_CHANGE, Ontology, OntologyError

EPISODE_TAG: Final = "<graphiti_episode"
"""Without a schema id, content with this tag uses ``agent_memory_v1``."""
BUILT_IN: Final[tuple[Ontology, ...]] = (agent_memory_v1.ONTOLOGY,)


class Ontologies:
    """The built-in ontologies and others. Immutable; ``extended`` returns a new object.

    Raises ``ValueError`` if two ontologies with the same id differ: old episodes must keep their meaning at a replay.
    """

    def __init__(self, more: Iterable[Ontology] = ()) -> None:
        self._by_id: dict[str, Ontology] = {}
        for ontology in (*BUILT_IN, *more):
            known = self._by_id.setdefault(ontology.schema_id, ontology)
            if known.digest != ontology.digest:
                msg = (
                    f"another ontology has the id {ontology.schema_id!r}: choose a new id, "
                    f"such as {_next(ontology.schema_id)!r}"
                )
                raise ValueError(msg)

    @property
    def ids(self) -> tuple[str, ...]:
        """The schema ids, built-in ones first."""
        return tuple(self._by_id)

    @cached_property
    def ends(self) -> EdgeEnds:
        """How relations end by the rules of all ontologies."""
        return EdgeEnds(ontology.edge_rules for ontology in self._by_id.values())

    @cached_property
    def predicate_rules(self) -> Mapping[str, EdgeRule]:
        """What claims of users depend on. One file has them all."""
        return next((each.predicate_rules for each in self._by_id.values() if each.predicate_rules), NO_RULES)

    def extended(self, more: Iterable[Ontology]) -> Ontologies:
        """Return these and other ontologies. Raises ``ValueError`` if an id would change its meaning."""
        return Ontologies((*self._by_id.values(), *more))

    def get(self, schema_id: str) -> Ontology:
        """Return an ontology by its id. Raises ``OntologyError``, which lists the known ids."""
        found = self._by_id.get(schema_id)
        if found is None:
            # Without the unknown id, because messages never quote events.
            near = did_you_mean(schema_id, self._by_id)
            raise OntologyError(
                f"unknown schema_id{near}: use {', '.join(self._by_id)}, or leave it out; {AFTER_A_CHANGE}"
            )
        return found

    def resolve(self, schema_id: str | None, content: str) -> Ontology | None:
        """Return the ontology of an episode: see ``resolve_ontology``."""
        if schema_id is not None:
            return self.get(schema_id)
        return self._by_id[agent_memory_v1.SCHEMA_ID] if EPISODE_TAG in content else None


_ALONE: Final = Ontologies()


def resolve_ontology(schema_id: str | None, content: str, ontologies: Ontologies = _ALONE) -> Ontology | None:
    """Return the ontology of an episode: that of ``schema_id``, if given.

    Without it, content with ``<graphiti_episode`` uses ``agent_memory_v1``; other content has no ontology (None) and
    may use any type. Raises ``OntologyError`` for an unknown id.
    """
    return ontologies.resolve(schema_id, content)


def _next(schema_id: str) -> str:
    stem, _, version = schema_id.rpartition("_v")
    return f"{stem}_v{int(version) + 1}" if stem and version.isdecimal() else f"{schema_id}_v2"
