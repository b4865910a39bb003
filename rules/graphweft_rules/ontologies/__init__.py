"""Ontologies: which types of entities and relations there are to know, by the id of a schema.

``ontology`` is one of them and what it makes of an episode, ``registry`` finds them, ``agent_memory_v1`` is built in,
and ``files`` reads those that users write as YAML.
"""

from graphweft_rules.ontologies.files import FOLDER, apart, lint_ontologies, load_ontologies
from graphweft_rules.ontologies.ontology import Ontology, OntologyError
from graphweft_rules.ontologies.registry import Ontologies, resolve_ontology

__all__ = (
    "FOLDER",
    "Ontologies",
    "Ontology",
    "OntologyError",
    "apart",
    "lint_ontologies",
    "load_ontologies",
    "resolve_ontology",
)
