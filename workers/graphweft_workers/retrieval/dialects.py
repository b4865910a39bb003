"""Where the Cypher of a search differs between FalkorDB and Neo4j (checked on 4.22 and 5.26).

Everything here names the node ``n`` and only reads. Words come from ``graphweft_rules.terms``, so they hold letters and
digits alone; they are quoted nevertheless, because FalkorDB stems a bare word of a question even where the index does
not stem, and finds "on" when it is asked for "onli".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, override

from graphweft_contracts import QueryFailed
from graphweft_rules.batching import Dialect
from graphweft_rules.terms import scope_term
from graphweft_workers.retrieval.target import Target, TextSide, VectorSide

type Fragment = tuple[str, dict[str, object]]
"""Cypher, and values of its parameters."""

_SHORTEST: Final = 3
"""Letters of a beginning of words that is searched for: shorter ones are everywhere."""
_NARROW: Final = ("thread_id", "user_id", "agent_id", "application_id")
"""Scopes by how little they usually hold."""
_BLANKS: Final = " \t\n\v\f\r"
"""What FalkorDB's indexes lose at both ends of a text."""
_PLAIN: Final = re.compile(r"\w")


class Language(ABC):
    """How one kind of server is asked."""

    handle: str
    """The expression for what a node without a key is fetched by."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return a label or property as Cypher takes it."""

    @abstractmethod
    def within(self, target: Target) -> Fragment:
        """Bind all nodes of a scope; the conditions on the scope itself come behind it."""

    @abstractmethod
    def holding(self, text: TextSide, target: Target) -> str:
        """Bind the nodes that the fulltext index finds by ``question``, an expression for the server's language."""

    @abstractmethod
    def question(self, text: TextSide, scope: Mapping[str, str], terms: Sequence[str]) -> str:
        """Return a question for the fulltext index: what holds one of the terms, and is in all of the scopes."""

    @abstractmethod
    def near(self, target: Target, vector: VectorSide) -> Fragment:
        """Bind about ``$__gw_wide`` of the nodes that are nearest to ``$__gw_vector``, by the vector index."""

    @abstractmethod
    def score(self, vector: VectorSide) -> str:
        """Return the expression for how near ``n`` is to ``$__gw_vector``: 0 to 1, as Neo4j has it."""

    def equal(self, found: str, wanted: str) -> str:
        """Return the condition that a property is equal to a text, which is not empty."""
        return f"{found} = {wanted}"

    def sure(self, target: Target) -> list[str]:
        """Return conditions by which what an index finds is a node of the target."""
        return []

    def label(self, target: Target) -> str:
        """Return the label as it stands in a pattern."""
        return "|".join(self.quoted(name) for name in target.labels)

    def beginnings(self, term: str) -> str | None:
        """Return what the words begin with that come to the term, where that is long enough to be searched for.

        An index of somebody else's does not stem, or in another way. What is found too much falls away later.
        """
        start = term[:-1] if term.endswith(("e", "i")) else term
        return start if len(start) >= _SHORTEST else None


class _FalkorDB(Language):
    handle = "id(n)"

    @override
    def quoted(self, name: str) -> str:
        if "`" in name:
            raise QueryFailed(f"{name!r} cannot be searched: FalkorDB knows no escaped backtick")
        return f"`{name}`"

    @override
    def equal(self, found: str, wanted: str) -> str:
        # So that no index is asked, which finds no value that begins or ends with a blank.
        return f"coalesce({found}, '') = {wanted}"

    @override
    def within(self, target: Target) -> Fragment:
        scope = target.scope
        # The index on a property is the quickest way, and misses what begins or ends with a blank.
        plain = next((name for name in _NARROW if name in scope and scope[name] == scope[name].strip(_BLANKS)), None)
        if plain is not None and target.key:
            return f"MATCH (n:{self.label(target)} {{{self.quoted(plain)}: $__gw_{plain}}})", {}
        text = target.text
        if not scope or text is None or text.scopes is None:
            return f"MATCH (n:{self.label(target)})", {}
        question = " ".join(self._scopes(text, scope))
        return self.holding(text, target), {"__gw_question": question}

    @override
    def holding(self, text: TextSide, target: Target) -> str:
        return f"CALL db.idx.fulltext.queryNodes({_text(target.labels[0])}, $__gw_question) YIELD node AS n"

    @override
    def question(self, text: TextSide, scope: Mapping[str, str], terms: Sequence[str]) -> str:
        if text.terms:
            return " ".join((f"@{text.terms}:({'|'.join(map(_phrase, terms))})", *self._scopes(text, scope)))
        words: dict[str, None] = {}
        for term in terms:
            words[term] = None  # bare, so that it finds what the index has stemmed
            if start := self.beginnings(term):
                words[f"{start}*"] = None
        fields = "|".join(_escaped(name) for name in text.properties)
        return f"@{fields}:({'|'.join(words)})"

    @override
    def near(self, target: Target, vector: VectorSide) -> Fragment:
        names = f"{_text(target.labels[0])}, {_text(vector.property)}"
        return f"CALL db.idx.vector.queryNodes({names}, $__gw_wide, vecf32($__gw_vector)) YIELD node AS n", {}

    @override
    def score(self, vector: VectorSide) -> str:
        both = f"n.{self.quoted(vector.property)}, vecf32($__gw_vector)"
        if vector.similarity == "euclidean":
            return f"1.0 / (1.0 + vec.euclideanDistance({both}) ^ 2)"
        return f"1.0 - vec.cosineDistance({both}) / 2.0"

    def _scopes(self, text: TextSide, scope: Mapping[str, str]) -> list[str]:
        return [f"@{text.scopes}:({_phrase(scope_term(name, value))})" for name, value in scope.items()]


class _Neo4j(Language):
    handle = "elementId(n)"

    @override
    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    @override
    def within(self, target: Target) -> Fragment:
        return f"MATCH (n:{self.label(target)})", {}

    @override
    def holding(self, text: TextSide, target: Target) -> str:
        return f"CALL db.index.fulltext.queryNodes({_text(text.index)}, $__gw_question) YIELD node AS n"

    @override
    def question(self, text: TextSide, scope: Mapping[str, str], terms: Sequence[str]) -> str:
        if text.terms:
            scopes = [f'{text.scopes}:"{scope_term(name, value)}"' for name, value in scope.items()]
            return " AND ".join((f"{text.terms}:({' '.join(map(_phrase, terms))})", *scopes))
        words: dict[str, None] = {}
        for term in terms:
            words[_phrase(term)] = None
            if start := self.beginnings(term):
                words[f"{start}*"] = None
        return " ".join(f"{_escaped(name)}:({' '.join(words)})" for name in text.properties)

    @override
    def sure(self, target: Target) -> list[str]:
        # A fulltext index may be of more labels.
        return [] if target.key else [f"n:{self.label(target)}"]

    @override
    def near(self, target: Target, vector: VectorSide) -> Fragment:
        call = "CALL db.index.vector.queryNodes($__gw_index, $__gw_wide, $__gw_vector) YIELD node AS n"
        return call, {"__gw_index": vector.index}

    @override
    def score(self, vector: VectorSide) -> str:
        return f"vector.similarity.{vector.similarity}(n.{self.quoted(vector.property)}, $__gw_vector)"


_LANGUAGES: Final[Mapping[Dialect, Language]] = {"falkordb": _FalkorDB(), "neo4j": _Neo4j()}


def language(dialect: Dialect) -> Language:
    """Return how servers of this kind are asked."""
    return _LANGUAGES[dialect]


def _phrase(term: str) -> str:
    return f'"{term}"'


def _escaped(name: str) -> str:
    """Return the name of a property as both servers' fulltext languages take it."""
    return "".join(char if _PLAIN.match(char) else f"\\{char}" for char in name)


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
