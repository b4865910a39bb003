"""Ontologies: the types of entities and relations that episodes may have, by schema id."""

from graphweft_workers.features.episodes.ontologies.files import (
    FOLDER,
    apart,
    lint_ontologies,
    load_ontologies,
    ontology_files,
)
from graphweft_workers.features.episodes.ontologies.ontology import Ontology, OntologyError
from graphweft_workers.features.episodes.ontologies.registry import Ontologies, resolve_ontology

__all__ = (
    "FOLDER",
    "Ontologies",
    "Ontology",
    "OntologyError",
    "apart",
    "lint_ontologies",
    "load_ontologies",
    "ontology_files",
    "resolve_ontology",
)
