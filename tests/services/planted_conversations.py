"""Stories of one user each, told in messages, of which it is known what holds in the end by rules of predicates.

What holds is written beside each story by hand, not computed: a person leaves a firm, and has its boss no longer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Literal

from tests.services.planted_stories import Said, Story

type Kind = Literal["cascade", "absence", "mark", "kept", "said again"]

ONTOLOGY: Final = """\
predicate_rules:
  - {predicate: works as, depends_on: works for}
  - {predicate: has supervisor, depends_on: works as}
  - {predicate: has boss, depends_on: works for}
  - {predicate: has landlord, depends_on: lives in}
  - {predicate: has dentist, depends_on: lives in}
  - {predicate: has phone number, depends_on: works for, when_ended: mark}
  - {predicate: drives, depends_on: works for, when_ended: mark}
"""
_FIRMS: Final = ("Acme", "Borealis", "Globex", "Initech")
_CITIES: Final = ("Oslo", "Bergen", "Rome", "Porto")
_NAMES: Final = ("Anna Berg", "Ben Cole", "Clara Dahl", "Hugo Eide", "Ines Fox")

_WORK: Final = ((1, "I work for {f}."), (2, "I work as a nurse."), (3, "My supervisor is {n}."))
_HOME: Final = ((1, "I live in {c}."), (2, "My landlord is {n}."), (3, "My dentist is {m}."))
_QUIT: Final = (5, "I quit my job.")
# kind, messages, places of those that hold, places of those in doubt
_FORMS: Final[Sequence[tuple[Kind, Sequence[Said], Sequence[int], Sequence[int]]]] = (
    # What depends on something goes with it, through a chain
    ("cascade", ((1, "I work for {f}."), (2, "My boss is {n}."), (5, "I work for {g} now.")), (2,), ()),
    ("cascade", (*_WORK, (5, "I started a new job at {g}.")), (3,), ()),
    ("cascade", (*_WORK, (4, "I work as a teacher.")), (0, 3), ()),
    ("cascade", (*_HOME, (5, "I moved to {d}.")), (3,), ()),
    ("cascade", (*_HOME, (5, "I moved to {d}."), (6, "My landlord is {m}.")), (3, 4), ()),
    ("cascade", ((1, "My boss is {n}."), (2, "I work for {f}."), (5, "I changed jobs and went to {g}.")), (2,), ()),
    ("cascade", ((1, "I work for {f}. My boss is {n}."), (5, "I work for {g} now. My boss is {m}.")), (1,), ()),
    # Nothing takes its place
    ("absence", (*_WORK, _QUIT), (3,), ()),
    ("absence", (*_WORK, (5, "I no longer work for {f}.")), (3,), ()),
    ("absence", (*_HOME, (5, "I don't live in {c} anymore.")), (3,), ()),
    ("absence", ((1, "I work for {f}."), (2, "My boss is {n}."), (5, "I was laid off by {f}.")), (2,), ()),
    ("absence", ((1, "I work for {f}."), (2, "My boss is {n}."), (3, "My boss is {m}."), _QUIT), (3,), ()),
    # What is only marked
    ("mark", ((1, "I work for {f}."), (2, "My phone number is 555 1234."), (5, "I work for {g} now.")), (1, 2), (1,)),
    ("mark", ((1, "I work for {f}."), (2, "I drive a Volvo."), _QUIT), (1, 2), (1,)),
    # What does not depend on it stays
    ("kept", ((1, "I work for {f}."), (2, "My boss is {n}."), (3, "I live in {c}."), (5, "I moved to {d}.")),
     (0, 1, 3), ()),
    ("kept", ((2, "My boss is {n}."), (3, "I live in {c}."), (5, "I moved to {d}.")), (0, 2), ()),
    ("kept", ((1, "I work for {f}."), (3, "I work for {g} now."), (4, "My boss is {n}."), (5, "I still work for {g}.")),
     (1, 2, 3), ()),
    ("kept", ((1, "My mother works for {f}."), (2, "My boss is {n}."), (5, "My mother works for {g}.")), (1, 2), ()),
    ("kept", ((1, "I work for {f}."), (3, "I quit my job."), (4, "My boss is {n}.")), (1, 2), ()),
    # What is said once more
    ("said again", (*_HOME, (4, "I live in {c}.")), (0, 1, 2, 3), ()),
    ("said again", (*_HOME[:2], (5, "I moved to {d}."), (6, "My landlord is {n}.")), (2, 3), ()),
)  # fmt: skip


def planted(seed: int = 47, each: int = 6) -> list[Story]:
    """Return ``each`` stories of each form, with names of their own: 42 cascades and 30 absences among 126."""
    rng = random.Random(seed)
    stories: list[Story] = []
    for kind, said, holds, doubted in _FORMS:
        for _ in range(each):
            n, m = rng.sample(_NAMES, 2)
            f, g = rng.sample(_FIRMS, 2)
            c, d = rng.sample(_CITIES, 2)
            told = [(day, text.format(n=n, m=m, f=f, g=g, c=c, d=d)) for day, text in said]
            stories.append(Story(
                len(stories), kind, told,
                frozenset(_kept(*told[place]) for place in holds), frozenset(_kept(*told[place]) for place in doubted),
            ))  # fmt: skip
    return stories


def _kept(day: int, text: str) -> str:
    """Return how a message is named in what holds: by its day too, since it may be said again."""
    return f"{day} {text}"
