"""Which nodes become candidates of a search by words, where there are more than are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """Terms whose nodes are all candidates, and one term of which ``room`` nodes are."""

    whole: tuple[str, ...]
    cut: str | None = None
    room: int = 0


def select(holding: Mapping[str, int], most: int) -> Selection:
    """Choose at most ``most`` candidates: nodes of the rarest terms first; equally rare terms go by name.

    ``holding`` maps each term to its number of nodes. The first term that does not fit fills the rest. The result
    depends on these counts only, so every server gives the same.
    """
    room = most
    whole: list[str] = []
    for count, term in sorted((count, term) for term, count in holding.items() if count):
        if count > room:
            return Selection(tuple(whole), term if room else None, room)
        whole.append(term)
        room -= count
    return Selection(tuple(whole))
