"""Texts of searches that graph servers write alike: terms, names and strings in Cypher and in fulltext queries."""

from __future__ import annotations

import re
from typing import Any, Final

from graphweft_workers.ports.dialect import Similarity

_PLAIN: Final = re.compile(r"\w")


def phrase(term: str) -> str:
    """Return a term as a phrase of a fulltext query; terms consist of letters and digits."""
    return f'"{term}"'


def escaped(name: str) -> str:
    """Return the name of a property as a fulltext query writes it."""
    return "".join(char if _PLAIN.match(char) else f"\\{char}" for char in name)


def string(value: str) -> str:
    """Return a string literal of Cypher."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def similarity_of(name: Any) -> Similarity:
    """Return the similarity that a server's listing of indexes names; cosine if it names none."""
    return "euclidean" if str(name).lower() == "euclidean" else "cosine"
