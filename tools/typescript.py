"""The types of the TypeScript client, from the same models as the JSON Schemas.

Only what goes over HTTP is in ``clients/typescript/src/contracts.ts``: no event types that workers alone emit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from graphweft_contracts.context import Format, ReasonCode
from graphweft_contracts.event_rights import INTERNAL_TYPES
from graphweft_contracts.events import registered_payloads
from graphweft_contracts.search import INDEX_TYPES, SEARCHED

_WIDTH: Final = 120
_PRIMITIVES: Final[Mapping[str, str]] = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
_HEAD: Final = """\
// The types of the contracts, generated from the models of graphweft.
// Do not change them here: renew them with `make generate`.
"""


def render() -> str:
    """Return the text of the file."""
    payloads = {name: model for name, model in registered_payloads().items() if name not in INTERNAL_TYPES}
    interfaces: dict[str, str] = {}
    for model in payloads.values():
        interfaces |= _interfaces(model.model_json_schema(), model.__name__, model.__doc__ or "")
    parts = [_HEAD, *interfaces.values()]
    rows = "\n".join(f"  {json.dumps(name)}: {model.__name__};" for name, model in payloads.items())
    parts.append(f"/** The data of the event types of the contracts. */\nexport interface EventData {{\n{rows}\n}}\n")
    parts.append(_union("Reason", get_args(ReasonCode), "Why a block, or a whole reply, is missing."))
    parts.append(_union("IndexType", INDEX_TYPES, "How a search goes."))
    parts.append(_union("Searched", SEARCHED, "What a search within a scope finds."))
    parts.append(_union("Format", get_args(Format), "The form of a block's value."))
    return "\n".join(parts)


def _interfaces(schema: dict[str, Any], name: str, doc: str) -> dict[str, str]:
    """Return the interface of a schema, and those of its definitions, by name."""
    found: dict[str, str] = {}
    for part, definition in schema.pop("$defs", {}).items():
        found |= _interfaces(definition, part, definition.get("description", ""))
    if schema.get("type") == "object" and "properties" in schema:
        found[name] = "".join(f"{line}\n" for line in _interface(schema, name, doc))
    else:
        found[name] = f"{_comment(doc, '')}export type {name} = {_type(schema)};\n"
    return found


def _interface(schema: Mapping[str, Any], name: str, doc: str) -> Iterator[str]:
    if doc:
        yield _comment(doc, "").rstrip("\n")
    yield f"export interface {name} {{"
    required = set(schema.get("required", ()))
    for field, content in schema["properties"].items():
        if description := content.get("description"):
            yield _comment(description, "  ").rstrip("\n")
        kind = _type(content)
        if field in required:
            yield f"  {field}: {kind};"
        else:
            yield f"  {field}?: {kind};" if kind == "unknown" else f"  {field}?: {kind} | undefined;"
    if schema.get("additionalProperties"):
        yield "  [field: string]: unknown;"
    yield "}"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a value."""
    match schema:
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case {"const": value}:
            return json.dumps(value)
        case {"enum": [*values]}:
            return " | ".join(map(json.dumps, values))
        case {"anyOf": [*options]} | {"oneOf": [*options]} if "properties" not in schema:
            return " | ".join(dict.fromkeys(map(_type, options)))
        case {"type": "array", "items": items}:
            inner = _type(items)
            return f"readonly {inner}[]" if re.fullmatch(r"\w+", inner) else f"readonly ({inner})[]"
        case {"type": "array"}:
            return "readonly unknown[]"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": str(name)}:
            return _PRIMITIVES[name]
        case _:
            return "unknown"


def _union(name: str, values: Sequence[str], doc: str) -> str:
    one_line = f"export type {name} = {' | '.join(map(json.dumps, values))};"
    if len(one_line) > _WIDTH:
        one_line = f"export type {name} =\n" + "\n".join(f"  | {json.dumps(value)}" for value in values) + ";"
    return f"{_comment(doc, '')}{one_line}\n"


def _comment(text: str, indent: str) -> str:
    """Return a comment of one line: the first paragraph, in the marks of TypeScript."""
    line = " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace("*/", "*\u200b/")
    return f"{indent}/** {line} */\n" if line else ""
