"""What a question asks for beside its words: a day, a time, a number, and whose turns; in English and German. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from typing import Final

from graphweft_workers.retrieval.periods import MONTHS, WEEKDAYS, Period, names_of, read_periods
from graphweft_workers.retrieval.topics import alike, answering_predicates, names_another
from graphweft_workers.retrieval.word_forms import forms_of
from graphweft_workers.text.languages import READ, latin_language
from graphweft_workers.text.terms import STOP_WORDS, query_terms, terms, topic_terms

_LONGEST_END: Final = 1_000
"""Characters of a question in which days, times, numbers and persons are looked for."""
_ANY_DAY: Final = "9999-12-31"
_PARTNER: Final = "partner"
"""Of the topic whom the user is with, which statements about others answer."""
_WORD: Final = re.compile(r"[^\W\d_]+")
_MOST_PERIODS: Final = 12
"""Each is compared with every day of a scope."""


_WHERE_AM_I: Final = re.compile(
    r"\bwhere (?:am i|are we)(?: staying)?(?: (?:now|right now|at the moment|currently|today|this week))?\W*$|"
    r"\bwo (?:bin ich|sind wir)(?: (?:jetzt|gerade|heute|momentan|diese woche))?\W*$"
)
_STAY: Final = re.compile(
    r"\b(?:i'm|i am|we're|we are|(?:i|we)(?:'ll| will) be|i(?:'m| am)? stay(?:ing)?|ich bin|wir sind|bin ich|sind wir)"
    r"(?: [a-z]+){0,4} (?:in|at|on|im|am|auf) ",
    re.IGNORECASE,
)
_HOME: Final = re.compile(r"\b(?:(?:i|we)(?: \w+)? live|ich (?:wohne|lebe)|wir (?:wohnen|leben)) ", re.IGNORECASE)
_WHO_AM_I: Final = re.compile(r"\bwho(?:m)? (?:am i|i am)\b|\bwer (?:bin ich|ich bin)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """The words by which a language asks."""

    when: re.Pattern[str]
    counted: re.Pattern[str]
    first_person: re.Pattern[str]
    not_now: re.Pattern[str]
    """Words of a question that does not ask how things are now."""
    to_come: re.Pattern[str]
    """Words of a question that asks how things will be."""
    present: re.Pattern[str]
    """Words of a question that asks how things are."""


_ENGLISH: Final = _Asking(
    when=re.compile(
        r"\b(?:when|how long|how many (?:days|weeks|months|years)|(?:what|which) (?:day|date|year|month|time))\b"
    ),
    counted=re.compile(r"\bhow (?:many|much|often|old|long|far|tall|big|high)\b"),
    first_person=re.compile(r"\b(?:i|me|my|mine|we|our|us)\b"),
    not_now=re.compile(
        r"\b(?:did|was|were|had|used to|first|before|originally|ever|"
        r"when(?!'s| (?:is|are|am|do|does|will|can|should)))\b"
    ),
    to_come=re.compile(
        r"\b(?:will|won't|going to|next|tomorrow|soon)\b|'ll\b|\b(?:from|after|until|till) "
        rf"(?:\d|the|{names_of(MONTHS)}|{names_of(WEEKDAYS)})"
    ),
    present=re.compile(r"\b(?:is|are|am|do|does|has|have|who|which)\b|['\u2019]s\b"),
)
_GERMAN: Final = _Asking(
    when=re.compile(
        r"\b(?:wann|wie lange|wie viele (?:tage|wochen|monate|jahre)|welche[mnrs]? (?:tag|datum|jahr|monat|uhrzeit))\b"
    ),
    counted=re.compile(r"\bwie (?:viele?|oft|alt|lange?|weit|gro\u00df|hoch|teuer)\b"),
    first_person=re.compile(r"\b(?:ich|mich|mir|meine?[mnrs]?|wir|uns|unsere?[mnrs]?)\b"),
    not_now=re.compile(
        r"\b(?:war|warst|waren|hatte|hatten|wurde|wurden|fr\u00fcher|damals|zuerst|vorher|jemals"
        r"|wann(?! (?:ist|sind|bin|habe|haben|hat|muss|kann|soll|wird|werde)\b))\b"
        r"|\b(?:habe|hat|haben|bin|ist|sind)\b.*\bge\w+(?:t|en)\b"
    ),
    to_come=re.compile(
        r"\b(?:werde|wirst|wird|werden|n\u00e4chste[nmrs]?|kommende[nmrs]?|\u00fcbermorgen|bald)\b|\b(?:ab|bis|nach) "
        rf"(?:\d|de[mr]|{names_of(MONTHS)}|{names_of(WEEKDAYS)})"
    ),
    present=re.compile(r"\b(?:ist|sind|bin|hat|haben|habe)\b|\b(?:wo|wie|was|wer|welche\w*|wann) \w+t\b"),
)
_TIME_WORDS: Final = frozenset(
    terms(
        "yesterday today tonight tomorrow ago last next week weekend month year day since recently soon morning "
        "evening spring summer autumn fall winter birthday anniversary "
        + " ".join(english for english, *_ in (*MONTHS, *WEEKDAYS))
    )
) | frozenset(
    terms(
        "ich bin gestern heute morgen \u00fcbermorgen woche monat jahr abend uhr geburtstag "
        + " ".join(german for _, german, *_ in (*MONTHS, *WEEKDAYS))
    )
) - frozenset(terms("ich bin apr aug sept"))
_NUMBER_WORDS: Final = frozenset(
    terms("two three four five six seven eight nine ten eleven twelve dozen hundred thousand once twice")
) | frozenset(
    {"zwei", "drei", "vier", "sechs", "sieb", "acht", "neun", "zehn", "zwolf", "hundert", "tausend", "zweimal"}
)


REQUEST_WORDS: Final = frozenset(
    terms(
        "tell told know remember remind recall say said please everything anything something give show mention talk "
        "myself summarize"
    )
)
"""Words of requests, which say nothing about what is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQuestion:
    """A question, as a ranking reads it."""

    terms: tuple[str, ...]
    """The distinct terms, in order: none if it has stop words, words of requests and relative times only."""
    pairs: frozenset[tuple[str, str]]
    """Terms that follow each other."""
    periods: tuple[Period, ...] = ()
    is_when: bool = False
    is_count: bool = False
    is_own: bool = False
    """Whether it is in the first person: it asks about the user's own turns."""
    alike: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """The terms that count like one of its terms, that one among them: other forms, and in a question about oneself
    words of the same topic."""
    has_topic: bool = False
    """Whether it is about oneself, and a topic of which a user has one at a time."""
    is_past: bool = False
    """Whether it asks how things were, and names no day."""
    until: str = ""
    """The last day that it asks about, if it asks how things are or were then: what was told last counts."""
    days: tuple[str, str] | None = None
    """The first and the last day that it asks about; None if it asks how things will be, or were once."""
    is_of_all: bool = False
    """Whether it asks for all that is known of the user: "What do you know about me?" """
    answering: Sequence[str] = ()
    """The predicates of what the user claims that answer it: "Where do I live?" asks for nothing else."""
    is_whereabouts: bool = False
    """Whether it asks where the user is now, who may be away from home: "Where am I?" """
    is_of_user: bool = False
    """Whether it asks about the user alone, and not about a relative or friend."""


def read_question(text: str, *, today: date, filter_stop_words: bool = True) -> RankedQuestion:
    """Return what a question asks for; relative times such as "last week" count from ``today``."""
    # Of a conversation the end asks.
    last = text[-_LONGEST_END:].casefold()
    periods, rest = read_periods(last, today)
    said = text[:-_LONGEST_END] + rest if periods else text
    wanted = topic_terms(said) if filter_stop_words else query_terms(said, filter_stop_words=False)
    is_of_all = False
    is_whereabouts = filter_stop_words and _WHERE_AM_I.search(last) is not None
    if is_whereabouts:
        wanted = []
    elif filter_stop_words and REQUEST_WORDS.issuperset(wanted):  # "What do you know about me?"
        is_of_all = bool(wanted) or _WHO_AM_I.search(last) is not None
        wanted = []
    is_german = latin_language(_WORD.findall(last)[:READ])[0] == "german"
    asking = _GERMAN if is_german else _ENGLISH
    is_own = asking.first_person.search(last) is not None
    is_past = not periods and asking.not_now.search(last) is not None
    is_now = not periods and not is_past and (is_own or asking.present.search(last) is not None)
    topics = alike(wanted, is_german=is_german) if is_own else {}
    forms = forms_of(wanted)
    ends = [end for period in periods if (end := period.end(today))]
    until = max(ends, default="") if topics else ""
    if is_now:
        until = _ANY_DAY
    days: tuple[str, str] | None = None
    if not is_past and not asking.to_come.search(last):
        begins = [begin for period in periods if (begin := period.begin(today))]
        days = (min([*begins, today.isoformat()]), max(ends, default=today.isoformat()))
    return RankedQuestion(
        terms=tuple(wanted),
        pairs=frozenset(pairwise(wanted)),
        periods=tuple(periods[:_MOST_PERIODS]),
        is_when=asking.when.search(last) is not None,
        is_count=asking.counted.search(last) is not None,
        is_own=is_own,
        alike={
            term: topics.get(term, frozenset()) | forms.get(term, frozenset())
            for term in wanted
            if term in topics or term in forms
        },
        has_topic=bool(topics),
        is_past=is_past,
        until=until,
        days=days,
        is_of_all=is_of_all and is_own,
        answering=answering_predicates(wanted)
        if is_own and is_now and days is not None and not names_another(last)
        else (),
        is_whereabouts=is_whereabouts,
        is_of_user=bool(topics) and not names_another(last) and not any(_PARTNER in each for each in topics.values()),
    )


def answering_terms(text: str) -> frozenset[str]:
    """Return terms that a text may answer a question with, beside its own: other forms of words, and of its topic."""
    asked = read_question(text, today=date.min)
    return frozenset(each for some in asked.alike.values() for each in some)


def is_stay(text: str) -> bool:
    """Return whether a turn tells where the user is: "I'm in Lisbon this week." """
    return _STAY.search(text) is not None


def is_home(text: str) -> bool:
    """Return whether a turn tells where the user lives."""
    return _HOME.search(text) is not None


def has_time(of_text: Sequence[str]) -> bool:
    """Return whether one of the terms of a text tells a time."""
    return not _TIME_WORDS.isdisjoint(of_text) or any(len(term) == 4 and term.isdecimal() for term in of_text)


def has_number(of_text: Sequence[str]) -> bool:
    """Return whether one of the terms of a text is a number."""
    return not _NUMBER_WORDS.isdisjoint(of_text) or any(term.isdecimal() for term in of_text)


def tells_words(of_text: Sequence[str]) -> int:
    """Return how many terms of a text are more than stop words."""
    return sum(term not in STOP_WORDS for term in of_text)
