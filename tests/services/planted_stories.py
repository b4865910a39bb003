"""Stories of users, of which it is known what holds in the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ("Said", "Story", "Told", "wrong")

type Said = tuple[int, str]
"""A day, and what is said on it."""
type Told = Mapping[str, set[str]]
"""By user, texts."""


@dataclass(frozen=True, slots=True)
class Story:
    """What one user says, and what of it holds then."""

    number: int
    kind: str
    said: Sequence[Said]
    holds: frozenset[str]
    """Of all that was said, in the form in which it is found."""
    doubted: frozenset[str] = frozenset()

    @property
    def user(self) -> str:
        """The id of the user."""
        return f"u{self.number}"


def wrong(stories: Iterable[Story], held: Told, doubted: Told) -> list[tuple[Story, set[str], set[str]]]:
    """Return the stories of which something else holds or is in doubt, with that."""
    return [
        (story, held.get(story.user, set()), doubted.get(story.user, set()))
        for story in stories
        if held.get(story.user, set()) != story.holds or doubted.get(story.user, set()) != story.doubted
    ]
