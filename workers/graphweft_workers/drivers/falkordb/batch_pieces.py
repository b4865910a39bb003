"""The pieces of a batch query's text, and the ``WITH`` clauses that carry variables from one piece to the next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from graphweft_rules.cypher.batch_query import ROW
from graphweft_workers.drivers.falkordb.batch_source import OWN, BatchSource

_OWN_NAME: Final = re.compile(rf"\b{OWN}[a-z]+[0-9]*")


@dataclass(frozen=True, slots=True)
class Cut:
    """A place for ``WITH … ORDER BY``: the variables visible there, and the ordering variables of UNWIND."""

    visible: tuple[str, ...]
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of the text, and the author's variables in it."""

    text: str
    names: frozenset[str]
    carries: bool = False
    """Whether it is the items of a WITH, which hides all variables that it does not name."""
    index: str = ""
    """The ordering variable that it defines."""


def join_pieces(
    pieces: Sequence[TextPiece | Cut], source: BatchSource, bound: Mapping[str, str], order: Sequence[str]
) -> str:
    """Return the text of the pieces; each cut carries the variables that later pieces name, and no others.

    A relationship that is carried without a use would make the server tell parallel relationships apart. ``bound`` maps
    the variables of a row's values to their expressions, ``order`` names the ordering variables.
    """
    own = (*bound, *order)
    texts: list[str] = []
    later: set[str] = set()
    for piece in reversed(pieces):
        carried = [name for name in own if name in later] if bound else [ROW]
        if isinstance(piece, TextPiece):
            text = f"WITH {', '.join([*carried, piece.text])}" if piece.carries else piece.text
            later |= piece.names
        else:
            names = [*carried, *(_quoted(name) for name in piece.visible if name in later)]
            text = f"WITH {', '.join(names)} ORDER BY {', '.join([source.number, *piece.order])}"
        later.update(_OWN_NAME.findall(text))
        if isinstance(piece, TextPiece):
            later.discard(piece.index)
        texts.append(text)
    head = [f"{place} AS {name}" for name, place in bound.items() if name in later]
    if head:
        texts.append(f"WITH {', '.join(head)}")
    return " ".join(reversed(texts))


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"
