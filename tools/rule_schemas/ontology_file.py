"""The JSON Schema of an ontology, one file in the folder ``ontologies``."""

from __future__ import annotations

from typing import Final

from graphweft_contracts.episodes import ANY_TYPE, TYPE_PATTERN
from tools.rule_schemas.keywords import Schema, document, matching, table

_NAME: Final[Schema] = matching(TYPE_PATTERN, "Not a type: use a letter, then letters, digits and '_', 64 at most.")
_TYPE: Final[Schema] = {"type": "string", **_NAME}


def ontology_file() -> Schema:
    """Return the schema of an ontology."""
    content = table(
        "The types of entities and relations that episodes may have. The name of the file is the id of the schema.",
        {
            "entity_types": _types(
                "The types of entities, each with a description, which the model reads.",
                {**_NAME, "not": {"const": ANY_TYPE}},
                minProperties=1,
            ),
            "edge_types": _types("The types of relations, each with a description, which the model reads.", _NAME),
            "edge_type_map": {
                "description": "Which relations are allowed between which entities. Without it, all are allowed.",
                "type": "array",
                "items": table(
                    "Relations that are allowed between two types of entities.",
                    {
                        "source": _names(f"Where the relations start: entity types; `{ANY_TYPE}` is any.", minItems=1),
                        "target": _names(f"Where the relations end: entity types; `{ANY_TYPE}` is any.", minItems=1),
                        "edges": _names("The types of the relations.", minItems=1),
                    },
                    ("source", "target", "edges"),
                ),
            },
            "excluded_entity_types": _names("Entities of these types are dropped, with their relations."),
        },
        ("entity_types",),
    )
    return document("Ontology of graphweft", content)


def _types(description: str, names: Schema, **more: int) -> Schema:
    return {
        "description": description,
        "type": "object",
        "propertyNames": names,
        "additionalProperties": {"description": "A sentence that describes the type.", "type": ["string", "null"]},
        **more,
    }


def _names(description: str, **more: int) -> Schema:
    return {
        "description": description,
        "type": ["string", "array"],
        **_NAME,
        "items": _TYPE,
        **more,
    }
