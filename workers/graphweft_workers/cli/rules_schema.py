"""``graphweft rules schema``."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from graphweft_rules.json_schemas import Kind, schema_text
from graphweft_workers.cli.options import Json, command
from graphweft_workers.cli.output import show
from graphweft_workers.reports.report import PlainReport


@command
async def rules_schema(
    kind: Annotated[Kind, typer.Argument(help="The kind of file: rules, test, ontology, or questions.")] = "rules",
    json: Json = False,
) -> None:
    """Print the JSON Schema of rules, rule tests, ontologies or questions, by which editors complete and check."""
    text = schema_text(kind)
    show(PlainReport(json_module.loads(text), [text.rstrip("\n")]), json=json)
