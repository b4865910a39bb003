"""Helpers for features that declare mutations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from graphweft_contracts import InvalidEvent
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.model import Place
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_workers.text.terms import MOST_TERMS_OF_EVENT, MOST_WORDS_OF_EVENT, EventTerms, TooManyWords

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


def stored_terms(of_event: EventTerms, text: str) -> dict[str, Any]:
    """Return the terms of a text of an event, and their number, as the text's node stores them.

    ``unsearched`` is the number of characters at the end that are beyond the limits; None if there are none.
    """
    found, unsearched = of_event.first(text)
    return {"terms": " ".join(found), "length": len(found), "unsearched": unsearched or None}


def shared_terms(of_event: EventTerms, text: str) -> dict[str, Any]:
    """Return the terms of a name or fact of an event, and their number: several events may write its node.

    Raises ``InvalidEvent`` if the event has too many words.
    """
    try:
        found = of_event.whole(text)
    except TooManyWords:
        msg = (
            f"the names and facts of the event have more than {MOST_WORDS_OF_EVENT} different words, or "
            f"{MOST_TERMS_OF_EVENT} words: emit them as several events"
        )
        raise InvalidEvent(msg) from None
    return {"terms": " ".join(found), "length": len(found)}
