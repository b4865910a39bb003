"""Pages from JSON Schemas: the format of rules, events, and the HTTP gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.schemas import schemas

from graphweft_contracts.events import LIFECYCLE
from graphweft_rules.json_schemas import KINDS, schema_text
from graphweft_workers.gateway.document import document
from graphweft_workers.gateway.limits import GatewayLimits
from website.markdown import code, table

Schema = Mapping[str, Any]
_HEAD: Final = ("key", "value", "meaning")
_FILES: Final = {
    "rules": ("Rules", "`<Workflow>/graph_injection.yaml`", "[writing rules](../rules.md)"),
    "test": ("Rule tests", "`<Workflow>/*_test.yaml`", "[testing rules](../rules.md#test-your-rules)"),
    "ontology": ("Ontologies", "`ontologies/*.yaml`", "[ontologies](../episodes.md#ontologies)"),
    "questions": (
        "Questions",
        "the file of `graphweft eval`",
        "[measure your memory](../memory.md#measure-your-memory)",
    ),
}


def files_page() -> str:
    """Return the page of the files that people write: rules, rule tests, ontologies, questions."""
    parts = [
        "# Rules, rule tests, ontologies and questions\n",
        "Written from the JSON Schemas that `graphweft rules schema` prints. `rules[].name` is the key `name` of each "
        "entry of `rules`.\n",
    ]
    for kind in KINDS:
        name, place, guide = _FILES[kind]
        schema = json.loads(schema_text(kind))
        parts += [f"## {name}\n", f"In {place}. {schema['description']} See {guide}.\n"]
        parts.append(table(_HEAD, _rows(schema, schema)))
    return "\n".join(parts)


def events_page() -> str:
    """Return the page of all event types with their fields."""
    found = schemas()
    parts = [
        "# Events\n",
        "Written from the contracts. [Events](../events.md) says where each runtime emits them. The files: "
        "[AsyncAPI](../../contracts/asyncapi.yaml), and the JSON Schema of each type.\n",
        "## Attributes of every event\n",
        table(_HEAD, _rows(found["event"], found["event"])),
    ]
    for type in sorted(set(found) - {"event", "context_request", "context_reply", "dead_letter"}, key=_order):
        parts += _section(type, _payload(found[type]), found[type])
    return "\n".join(parts)


def messages_page() -> str:
    """Return the page of context requests, replies and dead letters."""
    found = schemas()
    parts = ["# Context requests, replies and dead letters\n", "Written from the contracts.\n"]
    for name in ("context_request", "context_reply", "dead_letter"):
        parts += _section(name, found[name], found[name])
    return "\n".join(parts)


def http_page() -> str:
    """Return the page of the gateway's routes."""
    whole = openapi()
    parts = [
        "# HTTP routes\n",
        "Written from the OpenAPI document of the gateway, which it also serves at `/openapi.json`: "
        "[openapi.json](../openapi.json). [HTTP](../http.md) explains tokens, repeats and errors.\n",
    ]
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            parts += [f"## {code(f'{method.upper()} {path}')}\n", f"{operation['summary']}\n"]
            if text := operation.get("description"):
                parts.append(f"{text}\n")
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                schema = _followed(content["schema"], whole)
                parts.append(f"Body as {code(media)}:\n")
                if schema.get("properties"):
                    parts.append(table(_HEAD, _rows(schema, whole)))
            answers = [(code(status), _answer(each, whole)) for status, each in operation["responses"].items()]
            parts.append(table(("answer", "meaning"), answers))
    return "\n".join(parts)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a gateway with tokens."""
    return document(GatewayLimits(), secured=True)


def schema_files() -> Iterator[tuple[str, str]]:
    """Give name and content of each file of a schema that the site offers."""
    for kind in KINDS:
        yield f"schemas/files/{kind}.json", schema_text(kind)
    yield "openapi.json", json.dumps(openapi(), indent=1)


def _section(name: str, schema: Schema, whole: Schema) -> list[str]:
    """Return the section of a schema of the contracts: its heading, text, file and fields."""
    return [
        f"## {code(name)}\n",
        _description(schema),
        f"[JSON Schema](../../contracts/schemas/{name}.json)\n",
        table(_HEAD, _rows(schema, whole)),
    ]


def _description(schema: Schema) -> str:
    return str(schema.get("description", "")).replace("``", "`") + "\n"


def _order(type: str) -> tuple[int, str]:
    kinds = list(LIFECYCLE)
    return (kinds.index(type), "") if type in LIFECYCLE else (len(kinds), type)


def _payload(schema: Schema) -> Schema:
    data = schema.get("properties", {}).get("data")
    return schema if data is None else _followed(data, schema)


def _answer(answer: Schema, whole: Schema) -> str:
    return str(_followed(answer, whole).get("description", ""))


def _rows(schema: Schema, whole: Schema, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", ())
    for name, raw in schema.get("properties", {}).items():
        each = _followed(raw, whole)
        meaning = str(raw.get("description") or each.get("description") or "")
        must = " (required)" if name in required else ""
        yield code(prefix + name), _type(each, whole) + must, meaning.replace("``", "`")
        inner, mark = _inner(each, whole)
        if inner is not None and depth < 6:
            yield from _rows(inner, whole, f"{prefix}{name}{mark}.", depth + 1)


def _inner(schema: Schema, whole: Schema) -> tuple[Schema | None, str]:
    for each in (schema, *(_followed(one, whole) for one in schema.get("anyOf", ()))):
        if each.get("properties"):
            return each, ""
        items = _followed(each.get("items", {}), whole) if isinstance(each.get("items"), dict) else {}
        if items.get("properties"):
            return items, "[]"
    return None, ""


def _type(schema: Schema, whole: Schema) -> str:
    if "enum" in schema:
        values = (each if isinstance(each, str) else json.dumps(each) for each in schema["enum"])
        text = ", ".join(dict.fromkeys(code(each) for each in values))
    elif "const" in schema:
        text = code(schema["const"])
    elif "anyOf" in schema:
        text = " or ".join(dict.fromkeys(_type(_followed(each, whole), whole) for each in schema["anyOf"]))
    else:
        kind = schema.get("type", "any")
        text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        text += f", {low if low is not None else '…'} to {high if high is not None else '…'}"
    if (default := schema.get("default")) not in (None, [], {}, ""):
        text += f", default {code(json.dumps(default))}"
    return text


def _followed(schema: Schema, whole: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = whole
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return schema
