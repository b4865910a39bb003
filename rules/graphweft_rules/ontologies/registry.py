"""Ontologies by the ids of their schemas, and which of them an episode goes by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from graphweft_rules.findings import did_you_mean
from graphweft_rules.ontologies import agent_memory_v1
from graphweft_rules.ontologies.ontology import Ontology, OntologyError

EPISODE_TAG: Final = "<graphiti_episode"
"""A content with this goes by ``agent_memory_v1`` where no schema is named."""
BUILT_IN: Final[tuple[Ontology, ...]] = (agent_memory_v1.ONTOLOGY,)


class Ontologies:
    """The built-in ontologies and any more. It never changes: ``extended`` makes another one.

    An id means one thing for ever, for episodes of years ago are read by it again: what has another meaning needs
    another id. Raises ``ValueError`` when two ontologies with one id differ.
    """

    def __init__(self, more: Iterable[Ontology] = ()) -> None:
        self._by_id: dict[str, Ontology] = {}
        for ontology in (*BUILT_IN, *more):
            known = self._by_id.setdefault(ontology.schema_id, ontology)
            if known.digest != ontology.digest:
                msg = (
                    f"the ontology {ontology.schema_id!r} exists and means something else: give the new one another "
                    f"id, such as {_next(ontology.schema_id)!r}"
                )
                raise ValueError(msg)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the schemas, the built-in ones first."""
        return tuple(self._by_id)

    def extended(self, more: Iterable[Ontology]) -> Ontologies:
        """Return these ontologies with others. Raises ``ValueError`` when one of these would change its meaning."""
        return Ontologies((*self._by_id.values(), *more))

    def get(self, schema_id: str) -> Ontology:
        """Return an ontology by its id. Raises ``OntologyError``, which names those that exist."""
        found = self._by_id.get(schema_id)
        if found is None:
            # The unknown id is what somebody sent, so it stays out of the message.
            near = did_you_mean(schema_id, self._by_id)
            msg = f"schema_id names no ontology{near}: use {', '.join(self._by_id)}, or leave it out"
            raise OntologyError(msg)
        return found

    def resolve(self, schema_id: str | None, content: str) -> Ontology | None:
        """Return the ontology that an episode goes by: see ``resolve_ontology``."""
        if schema_id is not None:
            return self.get(schema_id)
        return self._by_id[agent_memory_v1.SCHEMA_ID] if EPISODE_TAG in content else None


_ALONE: Final = Ontologies()


def resolve_ontology(schema_id: str | None, content: str, ontologies: Ontologies = _ALONE) -> Ontology | None:
    """Return the ontology that an episode with this content goes by.

    That is the one of ``schema_id`` where it is given; else ``agent_memory_v1`` when the content has
    ``<graphiti_episode``; else None, and any type may be used. Raises ``OntologyError`` for an id that does not exist.
    """
    return ontologies.resolve(schema_id, content)


def _next(schema_id: str) -> str:
    stem, _, version = schema_id.rpartition("_v")
    return f"{stem}_v{int(version) + 1}" if stem and version.isdecimal() else f"{schema_id}_v2"
