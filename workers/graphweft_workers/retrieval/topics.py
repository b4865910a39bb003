"""Words that tell the same of a person: "I moved to Bergen" answers "Where do I live?". Pure.

Small tables of English and German, for questions of users about themselves: where they live and work, what something
is called, whom they are with, which pets they have, when they were born. A model knows more of them; a new
installation has none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from graphweft_workers.text.terms import terms

KIN: Final = (
    r"(?:mother|mom|mum|father|dad|wife|husband|partner|girlfriend|boyfriend|boss|manager|sister|brother|son|daughter|"
    r"friend|best friend|colleague|cousin|aunt|uncle|neighbou?r|roommate|flatmate|grandmother|grandma|grandfather|"
    r"grandpa|niece|nephew)"
)
"""Who is near to a user, in English."""
_GERMAN_KIN: Final = (
    r"(?:mutter|mama|vater|papa|eltern|frau|mann|partner(?:in)?|freund(?:in)?|chef(?:in)?|schwester|bruder|sohn|tochter|"
    r"kollegin|kollegen?|cousine?|tante|onkel|nachbar(?:in)?|mitbewohner(?:in)?|oma|opa|nichte|neffen?)"
)
_ANOTHER: Final = re.compile(rf"\b(?:(?:my|our) (?:{KIN}|parents)|(?:mein|unser)\w* {_GERMAN_KIN})\b")
_SELF: Final = re.compile(r"\b(?:i|i['\u2019]\w+|we|we['\u2019]\w+|me|us|ich|wir|mich|mir|uns)\b")
_TOPICS: Final = (
    ("live reside home address", "live reside home address move relocate flat apartment house settle"),
    ("work job employer profession", "work job employer hired profession career company joined"),
    ("called name", "called name"),
    (
        "married wife husband partner spouse single girlfriend boyfriend dating relationship",
        "married wife husband partner spouse engaged divorced single girlfriend boyfriend fiance dating relationship "
        "broke broken split separated",
    ),
    ("pet pets", "pet pets dog cat hamster rabbit parrot horse puppy kitten goldfish turtle"),
    ("birthday born age", "birthday born age old"),
)
"""Words of a question, and the words of texts that tell about them."""
_GERMAN: Final = (
    (
        "wohne wohnen lebe adresse zuhause",
        "wohne wohnen wohnt gewohnt lebe adresse zuhause umziehen umgezogen umzug ziehe gezogen eingezogen wohnung "
        "haus mietvertrag",
    ),
    (
        "arbeite arbeiten job beruf arbeitgeber firma",
        "arbeite arbeiten job beruf arbeitgeber firma stelle angestellt eingestellt beworben karriere kollegen",
    ),
    ("hei\u00dfe hei\u00dft name genannt", "hei\u00dfe hei\u00dft hei\u00dfen name genannt"),
    (
        "verheiratet partner partnerin freund freundin single beziehung",
        "verheiratet partner partnerin freund freundin single beziehung verlobt geheiratet hochzeit getrennt "
        "geschieden",
    ),
    ("haustier haustiere", "haustier haustiere hund katze kater hamster kaninchen papagei pferd welpe"),
    ("geburtstag geboren alter", "geburtstag geboren alter"),
)
_IN_GERMAN: Final = "ich bin der und die "
"""Words before others that tell the language, by which these have their stems."""
_PREDICATES: Final = (("lives in",), ("works for",), ("is called",), ("has partner",), (), ("is born on", "is aged"))
"""For each topic, the predicates of statements with one value at a time that are about it."""


def _table(topics: Sequence[tuple[str, str]], before: str = "") -> Mapping[str, frozenset[str]]:
    small = frozenset(terms(before))
    found: dict[str, frozenset[str]] = {}
    for asked, told in topics:
        told_terms = frozenset(terms(before + told)) - small
        found.update(dict.fromkeys(frozenset(terms(before + asked)) - small, told_terms))
    return found


_ADDRESS: Final = frozenset(terms("address adresse"))
"""Words that have a topic only where nothing else says of what: "my e-mail address" is no home."""
_ANY_CLAIM: Final = frozenset(terms("now current still exact right full new present today long"))
"""Words that may stand in a question beside a topic: its answer is what the user claims."""
_CLAIMED: Final = tuple(
    (frozenset(terms(asked)), frozenset(terms(asked + " " + beside)) | _ANY_CLAIM, predicates)
    for asked, beside, predicates in (
        ("email mail", "e address", ("has e-mail address",)),
        ("phone mobile cell telephone", "number", ("has phone number",)),
        (
            "live reside home address", "city town country place based located street",
            ("lives in", "has address"),
        ),
        ("work job employer profession occupation", "company firm", ("works for", "works as")),
        ("name called", "first last surname", ("is called",)),
        ("married wife husband partner spouse girlfriend boyfriend dating engaged", "name called", ("has partner",)),
        ("birthday born", "date day", ("is born on",)),
        ("old age", "years", ("is aged",)),
        ("car drive", "kind type make", ("drives",)),
        ("plan tariff subscription", "tier package price", ("has plan",)),
        ("doctor gp", "name called", ("has doctor", "has gp")),
        ("boss manager", "name called", ("has boss", "has manager")),
        ("dentist", "name called", ("has dentist",)),
    )
)  # fmt: skip
"""The words of a question about oneself, those that may be beside them, and the predicates of claims that answer it."""
_ALIKE: Final = _table(_TOPICS)
_ALIKE_IN_GERMAN: Final = _table(_GERMAN, _IN_GERMAN)
_TOLD: Final = tuple(
    (frozenset(terms(told)), predicates) for (_, told), predicates in zip(_TOPICS, _PREDICATES, strict=True)
)


def predicates_of(told: frozenset[str]) -> list[str]:
    """Return the predicates that a text with these terms may be about."""
    return [each for words, predicates in _TOLD if not words.isdisjoint(told) for each in predicates]


def answering_predicates(asked: Collection[str]) -> Sequence[str]:
    """Return the predicates of the claims that answer a question about oneself with these terms; in doubt none."""
    wanted = frozenset(asked)
    for keys, allowed, predicates in _CLAIMED:
        if not keys.isdisjoint(wanted) and wanted <= allowed:
            return predicates
    return ()


def names_another(text: str) -> bool:
    """Return whether a text in small letters names a relative or a friend of the user: "my sister", "meine Mutter"."""
    return _ANOTHER.search(text) is not None


def tells_of_another(text: str) -> bool:
    """Return whether a turn tells of a relative or a friend, and not of the user: "My mum lives in Cork." """
    low = text.casefold()
    return names_another(low) and _SELF.search(low) is None


def alike(asked: Sequence[str], *, is_german: bool = False) -> dict[str, frozenset[str]]:
    """Return, for each term of a question about oneself that has a topic, the terms that tell about it.

    Only the first term of a topic has them, so that the topic counts once.
    """
    table = _ALIKE_IN_GERMAN if is_german else _ALIKE
    found: dict[str, frozenset[str]] = {}
    for term in asked:
        if term in _ADDRESS and not _ANY_CLAIM.issuperset(each for each in asked if table.get(each) != table[term]):
            continue
        if (told := table.get(term)) is not None and told not in found.values():
            found[term] = told - (frozenset(asked) - {term})
    return found
