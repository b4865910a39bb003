"""The predicates of what users say about themselves and others: how many of them hold at a time. Pure.

A claim is a subject, a predicate, an object, and whether it holds. Claims of one key are about the same thing, so a
later one may end an earlier one. A predicate with one value at a time has a key of subject and predicate: who lives in
Bergen lives in Oslo no longer. Of others the object belongs to the key: who likes tea may like coffee too, and only
"no longer likes tea" ends it.
"""

from __future__ import annotations

from typing import Final

from graphweft_contracts.memory import derived_id

_MANY: Final = frozenset({"likes", "is allergic to", "has", "is"})
_DOES: Final = "does "
DOES: Final = (
    "drink", "eat", "smoke", "vape", "play", "use", "speak", "watch", "take", "ride", "read", "wear", "collect",
    "practise", "teach", "learn", "attend", "rent", "run", "sing", "coach", "dance",
)  # fmt: skip
"""What somebody does: "does play"."""
PHRASES: Final = (
    "go to", "belong to", "subscribe to", "commute to", "teach at", "study at", "volunteer at", "volunteer for",
    "volunteer with", "train at", "train with", "train for", "sing in", "play in", "play for", "play with", "swim at",
    "swim in", "dance in", "row for", "live with", "share a flat with", "share an office with",
)  # fmt: skip
"""What somebody does somewhere, or with others."""
SERVICES: Final = (
    "doctor", "dentist", "boss", "manager", "therapist", "landlord", "trainer", "coach", "supervisor", "hairdresser",
    "accountant", "lawyer", "roommate", "flatmate", "tutor", "mentor", "gp", "nanny", "cleaner", "physiotherapist",
    "physio", "optician", "vet", "team lead", "line manager", "adviser", "advisor", "midwife", "dermatologist",
    "psychologist", "barber", "mechanic", "piano teacher", "landlady",
)  # fmt: skip
"""Persons of whom a user has one."""
THINGS: Final = (
    "phone", "laptop", "bank", "insurance", "insurer", "gym", "school", "university", "plan", "internet provider",
    "phone provider", "mobile provider", "electricity provider", "provider", "password manager", "browser",
    "editor", "team", "broker", "pharmacy",
)  # fmt: skip
"""Things of which a user has one."""
PREDICATES: Final = (
    "lives in", "works for", "works as", "studies", "has partner", "is called", "is aged", "is born on", "drives",
    "eats as", "has phone number", "has e-mail address", "has address", "likes", "is allergic to", "has", "is",
    *(f"has {each}" for each in (*SERVICES, *THINGS)),
)  # fmt: skip
"""The predicates of claims, but for those with a word of the user."""
PERSONS: Final = ("has partner", *(f"has {each}" for each in SERVICES))
OWNED: Final = ("has", "drives", "has phone", "has laptop")
"""What somebody may sell."""
KEPT: Final = (
    "works for", "studies", "is", "has", *(f"has {each}" for each in THINGS),
    *(f"{_DOES}{each}" for each in (*DOES, *PHRASES)),
)  # fmt: skip
"""What somebody may give up."""
_WITH_A_WORD: Final = ("has favourite ", "has favorite ", "prefers ", _DOES)


def is_known(predicate: str) -> bool:
    """Tell whether claims may have a predicate."""
    return predicate in PREDICATES or predicate.startswith(_WITH_A_WORD)


def is_single_valued(predicate: str) -> bool:
    """Tell whether a subject has one object of a predicate at a time."""
    return predicate not in _MANY and not predicate.startswith(_DOES)


def key_of(owner: tuple[str, ...], subject: str, predicate: str, object: str, *, is_sure: bool = True) -> str:
    """Return the key of a claim within the scope of its owner.

    Of a subject who may be two persons ("Anna", "my sister"; not ``is_sure``), the object belongs to it.
    """
    by_object = not is_single_valued(predicate) or not is_sure
    return derived_id("claim", *owner, subject, predicate, *((object,) if by_object else ()))
