"""The JSON Schemas of the files that people write, for editors: see ``graphweft_rules.json_schemas``."""

from __future__ import annotations

from collections.abc import Mapping

from graphweft_rules.json_schemas import Kind
from tools.rule_schemas.keywords import Schema
from tools.rule_schemas.ontology_file import ontology_file
from tools.rule_schemas.rule_file import rule_file
from tools.rule_schemas.rule_test_file import rule_test_file


def schemas() -> Mapping[Kind, Schema]:
    """Return every schema by the kind of its files."""
    return {"rules": rule_file(), "test": rule_test_file(), "ontology": ontology_file()}
