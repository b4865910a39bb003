"""Helpers for features that declare mutations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Final

from graphweft_contracts import InvalidEvent
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import parse_own
from graphweft_rules.files.model import Place
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_workers.text.terms import MOST_TERMS_OF_EVENT, MOST_WORDS_OF_EVENT, EventTerms, TooManyWords

SOURCE: Final = "/graphweft/memory"
"""The source of events that memory workers emit."""


class Declarations:
    """The mutations that a feature declares, by (event type, id, Cypher). They are parsed at the first use.

    That takes longer than most modules of a role take to load, and only a process that applies events uses them:
    `graphweft up`, a responder and most commands need the types of the events alone.
    """

    def __init__(self, file: str, texts: Callable[[], Iterable[tuple[str, str, str]]]) -> None:
        """Errors name ``file`` and the number of the mutation. ``texts`` is called once."""
        self._file = file
        self._texts = texts
        self._lock = Lock()
        self._mutations: tuple[CompiledMutation, ...] | None = None

    @property
    def mutations(self) -> tuple[CompiledMutation, ...]:
        """The mutations: always the same objects, because rows are told apart by the identity of their queries."""
        with self._lock:
            if self._mutations is None:
                self._mutations = tuple(
                    CompiledMutation(
                        rule=rule,
                        id=id,
                        cypher=parse_own(text, role="mutation"),
                        sources=(),
                        place=Place(file=self._file, line=number),
                    )
                    for number, (rule, id, text) in enumerate(self._texts(), 1)
                )
            return self._mutations

    def keys(self, more: Iterable[tuple[str, str]], without: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return the look-up keys of the mutations and ``more``, ``without`` some."""
        return frozenset(more).union(*(mutation.cypher.keys for mutation in self.mutations)).difference(without)


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
