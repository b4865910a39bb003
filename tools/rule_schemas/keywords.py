"""The JSON Schema of single values, in the forms that several files share.

Draft 7, because all editors know it. Keywords such as ``pattern`` and ``items`` judge only values of their own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

type Schema = dict[str, Any]

DIALECT: Final = "http://json-schema.org/draft-07/schema#"


def matching(pattern: str, message: str) -> Schema:
    """Return the keywords for a text that matches a pattern, with the message that editors show if it does not."""
    return {"pattern": pattern, "patternErrorMessage": message}


NOT_BLANK: Final = matching(r"[^ \t\r\n]", "It is empty: write a text, or remove the key if it is optional.")


def document(title: str, file: Schema) -> Schema:
    """Return the schema of a whole file, given that of its content."""
    return {"$schema": DIALECT, "title": title, **file}


def table(
    description: str, keys: Mapping[str, Schema], required: tuple[str, ...] = (), more: Schema | None = None
) -> Schema:
    """Return the schema of a mapping that has no other keys; ``more`` are further keywords."""
    found: Schema = {"description": description, "type": "object", "properties": dict(keys)}
    if required:
        found["required"] = list(required)
    return {**found, "additionalProperties": False, **(more or {})}


def texts(description: str, item: Schema, **more: Any) -> Schema:
    """Return the schema of a list that is not empty."""
    return {"description": description, "type": "array", "minItems": 1, "items": item, **more}


def text(description: str, **more: Any) -> Schema:
    """Return the schema of a text that is not blank."""
    return {"description": description, "type": "string", **NOT_BLANK, **more}


def choice(description: str, names: tuple[str, ...], **more: Any) -> Schema:
    """Return the schema of a text that is one of the names."""
    return {"description": description, "enum": list(names), **more}


def whole(description: str, **more: Any) -> Schema:
    """Return the schema of a whole number."""
    return {"description": description, "type": "integer", **more}
