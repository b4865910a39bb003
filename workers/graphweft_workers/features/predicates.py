"""The predicates of what users say about themselves and others: how many of them hold at a time. Pure.

A claim is a subject, a predicate, an object, and whether it holds. Claims of one key are about the same thing, so a
later one may end an earlier one. A predicate with one value at a time has a key of subject and predicate: who lives in
Bergen lives in Oslo no longer. Of others the object belongs to the key: who likes tea may like coffee too, and only
"no longer likes tea" ends it.
"""

from __future__ import annotations

from typing import Final

from graphweft_contracts.memory import derived_id

_MANY: Final = frozenset({"likes", "is allergic to", "has"})
_DOES: Final = "does "
SERVICES: Final = (
    "doctor", "dentist", "boss", "manager", "therapist", "landlord", "trainer", "coach", "supervisor", "hairdresser",
    "accountant", "lawyer",
)  # fmt: skip
"""Persons of whom a user has one."""
PREDICATES: Final = (
    "lives in", "works for", "works as", "studies", "has partner", "is called", "is aged", "is born on", "drives",
    "eats as", "has phone number", "has e-mail address", "has address", "likes", "is allergic to", "has",
    *(f"has {each}" for each in SERVICES),
)  # fmt: skip
"""The predicates of claims, but for those with a word of the user."""
_WITH_A_WORD: Final = ("has favourite ", "has favorite ", "prefers ", _DOES)


def is_known(predicate: str) -> bool:
    """Tell whether claims may have a predicate."""
    return predicate in PREDICATES or predicate.startswith(_WITH_A_WORD)


def is_single_valued(predicate: str) -> bool:
    """Tell whether a subject has one object of a predicate at a time."""
    return predicate not in _MANY and not predicate.startswith(_DOES)


def key_of(owner: tuple[str, ...], subject: str, predicate: str, object: str) -> str:
    """Return the key of a claim within the scope of its owner."""
    return derived_id("claim", *owner, subject, predicate, *(() if is_single_valued(predicate) else (object,)))
