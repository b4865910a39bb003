"""The JSON Schemas of the files that people write, for editors: see ``graphweft_rules.json_schemas``.

They are made from the forms that also the readers of these files go by. An editor accepts each file that the reader
accepts. It knows less: nothing of Cypher, of CEL, or of names that repeat. Draft 7, because all editors know it.
Keywords such as ``pattern`` and ``items`` judge only values of their own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphweft_rules.files import rule_form
from graphweft_rules.files.forms import NOT_BLANK, FlagKey, Form, Key, ListKey, NumberKey, Pattern, SectionKey, TextKey
from graphweft_rules.json_schemas import Kind
from graphweft_rules.rule_tests.form import TEST_FILE
from graphweft_workers.evaluation.form import QUESTION_FILE
from graphweft_workers.features.episodes.ontologies.form import ONTOLOGY

type Schema = dict[str, Any]

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"


def schemas() -> Mapping[Kind, Schema]:
    """Return every schema by the kind of its files."""
    return {
        "rules": _document("Rules of graphweft", rule_form.RULE_FILE, rule_form.DEFINITIONS),
        "test": _document("Rule tests of graphweft", TEST_FILE),
        "ontology": _document("Ontology of graphweft", ONTOLOGY),
        "questions": _document("Questions to a memory of graphweft", QUESTION_FILE),
    }


def _document(title: str, file: Form, definitions: Mapping[str, Mapping[str, Any]] | None = None) -> Schema:
    shared: dict[str, Schema] = {name: dict(schema) for name, schema in (definitions or {}).items()}
    found = {"$schema": _DIALECT, "title": title, **_mapping(file, shared)}
    return {**found, "definitions": shared} if shared else found


def _mapping(form: Form, shared: dict[str, Schema]) -> Schema:
    """Return the schema of a mapping; what forms share goes to ``shared``."""
    found: Schema = {
        "description": form.meaning,
        "type": "object",
        "properties": {name: _reference(key, shared) for name, key in form.keys.items()},
    }
    if form.required:
        found["required"] = [name for name in form.keys if name in form.required]
    found["additionalProperties"] = False
    if form.one_of:
        found["oneOf"] = [{"required": [name]} for name in form.one_of]
    if form.any_of:
        found["anyOf"] = [{"required": [name]} for name in form.any_of]
    needs = {name: [other] for name, other in form.needs.items()}
    if dependencies := {**needs, **form.editor.get("dependencies", {})}:
        found["dependencies"] = dependencies
    return {**found, **{name: value for name, value in form.editor.items() if name != "dependencies"}}


def _reference(key: Key, shared: dict[str, Schema]) -> Schema:
    if not key.shared:
        return _value(key, shared)
    shared[key.shared] = _value(key, shared)
    return {"$ref": f"#/definitions/{key.shared}"}


def _value(key: Key, shared: dict[str, Schema]) -> Schema:
    found: Schema = {"description": key.meaning}
    match key:
        case TextKey(names=()):
            found |= {"type": "string", **_pattern(key.pattern)}
        case TextKey():
            found["enum"] = list(key.names)
        case NumberKey():
            bounds = {"minimum": key.least, "maximum": key.most}
            found |= {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
        case FlagKey():
            found["type"] = "boolean"
        case SectionKey():
            found = {**_mapping(key.form, shared), **found}
        case ListKey():
            found |= {"type": ["string", "array"], **_pattern(NOT_BLANK)} if key.alone else {"type": "array"}
            found |= ({} if key.may_be_empty else {"minItems": 1}) | {"items": _item(key, shared)}
        case _:
            pass
    if key.default is not None:
        found["default"] = key.default
    return {**found, **key.editor}


def _item(key: ListKey, shared: dict[str, Schema]) -> Schema:
    text = None if key.text is None else _value(key.text, shared)
    form = None if key.form is None else _mapping(key.form, shared)
    if text is None or form is None:
        return text or form or {}
    return {"if": {"type": "string"}, "then": text, "else": form}


def _pattern(pattern: Pattern) -> Schema:
    return {"pattern": pattern.regex, "patternErrorMessage": pattern.fault}
