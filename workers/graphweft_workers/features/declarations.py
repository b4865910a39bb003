"""Helpers for features that declare mutations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.model import Place
from graphweft_rules.matching.workflow import CompiledMutation
from graphweft_workers.terms import terms

SOURCE: Final = "/graphweft/memory"
"""The source of events that memory workers emit."""


def compiled(file: str, texts: Iterable[tuple[str, str, str]]) -> tuple[CompiledMutation, ...]:
    """Return mutations from (event type, id, Cypher); errors name ``file`` and the number of the mutation."""
    return tuple(
        CompiledMutation(
            rule=rule, id=id, cypher=parse(text, role="mutation"), sources=(), place=Place(file=file, line=number)
        )
        for number, (rule, id, text) in enumerate(texts, 1)
    )


def terms_indexes(*labels: str) -> tuple[SearchIndex, ...]:
    """Return the fulltext indexes over the terms and scopes of nodes with these labels."""
    return tuple(
        SearchIndex(
            kind="fulltext", label=label, properties=("terms", "scopes"), name=f"graphweft_{label}_terms", terms=True
        )
        for label in labels
    )


def stored_terms(text: str) -> dict[str, Any]:
    """Return the terms of a text, and their number, as nodes store them."""
    found = terms(text)
    return {"terms": " ".join(found), "length": len(found)}
