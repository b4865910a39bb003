"""The known word that another one is most like, for hints at a misspelling."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], closeness: float = 0.6) -> str | None:
    """Return the known word that is most like another one; None if none is like it.

    ``closeness`` is the least similarity, from 0 to 1, by ``difflib``.
    """
    from difflib import get_close_matches  # most clients never need it

    return next(iter(get_close_matches(word, known, n=1, cutoff=closeness)), None)
