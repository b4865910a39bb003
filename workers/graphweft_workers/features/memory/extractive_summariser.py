"""A summariser without a model: it selects sentences, and knows a few English phrases.

The summary quotes sentences, which it selects by words, not by meaning. Facts and preferences are found in English
only, in messages of the role ``user``, if a sentence, or a part behind a comma, ``and`` or ``but``, begins with one of:

- facts: ``my name is``, ``I am called``; ``I live in``, ``I moved to``; ``I work at``, ``I work for``, ``I work as``;
  ``I am allergic to``, ``I am not allergic to``
- preferences: ``I prefer``, ``like``, ``love``, ``enjoy``, ``hate``, ``dislike``, ``avoid``, ``want``, ``don't like``,
  ``don't want``, ``can't stand``

Questions and sentences with ``if`` are skipped. Irony and quotations are taken literally. A value ends at the next
comma, full stop, ``and``, ``but`` or similar, so ``Trinidad and Tobago`` becomes ``Trinidad``, unless the sentence is a
claim, whose object is exact. Times within a sentence (``until May``) are ignored: a fact is valid from when it was
said. A withdrawn preference stays beside the later one.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, override

from graphweft_contracts.memory import ExtractedFact, ExtractedPreference, MemoryScope
from graphweft_workers.features.memory.claims import statements, without
from graphweft_workers.features.memory.summariser import MemoryText, Summariser, Summary
from graphweft_workers.text.terms import STOP_WORDS, terms

_MODEL: Final = "extractive"
_READ: Final = 200_000
"""Limit of characters, which take half a second; longer conversations are cut evenly."""
_CANDIDATES: Final = 500
"""Sentences that are scored again after each selection."""
_LONGEST_SENTENCE: Final = 300
"""Limit of characters in a quoted sentence."""
_SHORT: Final = 5
"""A sentence with fewer terms is scored as if it had this many."""
_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_STOPPED: Final = frozenset(term for word in STOP_WORDS for term in terms(word))
_MOST: Final = 1_000
"""Limit of facts, and of preferences, in one event."""

_BEGIN: Final = (
    r"(?:^|[,;]\s*|\b(?:and|but|so|also)\s+)(?:(?:hi|hello|well|yes|no|oh|actually|now|today)\b[,!]?\s+){0,5}"
)
_SAID: Final = (
    r"\s+(?P<what>[^\s,;:.!?()\"][^,;:!?()\"\n]{0,119}?)"
    r"(?=\s+(?:and|but|because|so|since|now|which|who|when|while|though|although|anymore|please)\b|[,;:!?()\"]|\.?\s*$|\.\s)"
)
_REALLY: Final = r"(?:\s+(?:really|also|still|now|just|always|usually|generally|absolutely|particularly)){0,5}"
"""Both repeat a few times only: from each comma, a search would else read the same long row of such words again."""


def _phrase(words: str) -> re.Pattern[str]:
    return re.compile(f"{_BEGIN}{words}{_SAID}", re.IGNORECASE)


_FACTS: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    (_phrase(r"(?:my name is|my name's|i am called|i'm called)"), "is called"),
    (_phrase(rf"i{_REALLY}\s+live\s+in"), "lives in"),
    (_phrase(r"i(?:\s+have|'ve)?(?:\s+just)?\s+moved\s+to"), "lives in"),
    (_phrase(rf"i{_REALLY}\s+work\s+(?:at|for)"), "works for"),
    (_phrase(rf"i{_REALLY}\s+work\s+as(?:\s+an?)?"), "works as"),
)
"""A subject has one of these at a time: a later fact ends the earlier one."""
_ALLERGIC: Final = _phrase(rf"i(?:\s+am|'m){_REALLY}(?P<not>\s+not|\s+no\s+longer)?{_REALLY}\s+allergic\s+to")
"""A subject may have many of these, so the predicate includes the object."""
_PREFERENCE: Final = re.compile(
    rf"{_BEGIN}i{_REALLY}\s+(?P<verb>prefer|like|love|enjoy|hate|dislike|avoid|want|don't\s+like|do\s+not\s+like|"
    rf"don't\s+want|do\s+not\s+want|can't\s+stand|cannot\s+stand){_SAID}",
    re.IGNORECASE,
)
_REQUEST: Final = re.compile(
    r"(?:you|to\s+(?:know|ask|see|say|talk|thank|hear)|that|it|this|them|him|her)\b", re.IGNORECASE
)
"""Objects of wishes that are about the conversation itself."""
_PERSONAL: Final = 0.75
"""Share of a summary for sentences of users about themselves."""
_FIRST_PERSON: Final = re.compile(r"\b(?:i|me|my|mine|we|us|our|ours)\b", re.IGNORECASE)
_NOTHING_SAID: Final = re.compile(r"\?\s*$|\bif\b", re.IGNORECASE)
_THIRD: Final = {
    "don't like": "does not like",
    "do not like": "does not like",
    "don't want": "does not want",
    "do not want": "does not want",
    "can't stand": "cannot stand",
    "cannot stand": "cannot stand",
}


@dataclass(frozen=True, slots=True)
class _Sentence:
    message: int
    text: str
    terms: tuple[str, ...]
    size: int
    """Characters that it takes in a summary, with the speaker."""


class ExtractiveSummariser(Summariser):
    """Selects sentences; the same messages always give the same summary.

    What is kept as a statement is left out.
    Up to three quarters are statements of users about themselves (with ``I``, ``my``, ``we`` or similar), those with
    the rarest words first. The rest are sentences with the most frequent words of the conversation. Words of a selected
    sentence count half from then on. Sentences keep their order, each line begins with its speaker, and the summary has
    up to ``characters`` characters, but at least one sentence.
    """

    def __init__(self, *, characters: int = 1_000) -> None:
        self._characters = characters

    @property
    @override
    def model(self) -> str:
        return _MODEL

    @override
    async def summarise(self, messages: Sequence[MemoryText], *, scope: MemoryScope) -> Summary:
        # A thousand long messages take seconds, which others of the process are not to wait.
        return await asyncio.to_thread(self._summarise, messages, scope)

    def _summarise(self, messages: Sequence[MemoryText], scope: MemoryScope) -> Summary:
        messages = _shortened(messages)
        return Summary(
            text=_summary(messages, self._characters),
            model=_MODEL,
            facts=_facts(messages, scope),
            preferences=_preferences(messages),
        )

    @override
    async def aclose(self) -> None:
        pass


def speaker(message: MemoryText) -> str:
    """Return the author, or the role if there is none."""
    return message.author_name or message.role


def _shortened(messages: Sequence[MemoryText]) -> Sequence[MemoryText]:
    if sum(len(message.text) for message in messages) <= _READ:
        return messages
    return [replace(message, text=message.text[: max(1, _READ // len(messages))]) for message in messages]


# The summary


def _summary(messages: Sequence[MemoryText], characters: int) -> str:
    sentences = [
        _Sentence(
            number,
            sentence,
            tuple(dict.fromkeys(t for t in terms(sentence) if t not in _STOPPED)),
            len(sentence) + len(speaker(message)) + 3,
        )
        for number, message in enumerate(messages)
        for sentence in _sentences(_rest(message))
    ]
    if not sentences:
        said = any(message.has_statements for message in messages)
        return f"{len(messages)} messages {'of statements alone' if said else 'without words'}"
    picked = sorted(_picked(messages, sentences, characters))
    lines: list[str] = []
    before: int | None = None
    for number in picked:
        sentence = sentences[number]
        if sentence.message == before:
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(f"{speaker(messages[sentence.message])}: {sentence.text}")
        before = sentence.message
    return "\n".join(lines)


def _rest(message: MemoryText) -> str:
    """Return what a summary has to say of a message."""
    if not message.has_statements:
        return message.text
    return without(message.text, statements(message.text, year=message.time.year))


def _sentences(text: str) -> list[str]:
    found = [" ".join(part.split()).lstrip(",; ") for part in _END.split(text)]
    return [part if len(part) <= _LONGEST_SENTENCE else f"{part[: _LONGEST_SENTENCE - 1]}…" for part in found if part]


def _picked(messages: Sequence[MemoryText], sentences: Sequence[_Sentence], characters: int) -> list[int]:
    counts = Counter(term for sentence in sentences for term in sentence.terms)
    # Users ask later for what they said about themselves once, so rare words score higher.
    personal = [number for number, sentence in enumerate(sentences) if _is_personal(messages, sentence)]
    rare = {term: 1 / count for term, count in counts.items()}
    picked = _pick(sentences, personal, rare, int(characters * _PERSONAL))
    weights = {term: count / max(1, counts.total()) for term, count in counts.items()}
    for number in picked:
        characters -= sentences[number].size
        for term in sentences[number].terms:
            weights[term] /= 2
    others = [number for number in range(len(sentences)) if number not in picked]
    return picked + _pick(sentences, others, weights, characters, at_least=0 if picked else 1)


def _pick(
    sentences: Sequence[_Sentence],
    numbers: Sequence[int],
    weights: dict[str, float],
    characters: int,
    *,
    at_least: int = 0,
) -> list[int]:
    """Return the numbers of the best sentences that fit."""
    first = {number: _score(sentences[number], weights) for number in numbers}
    left = heapq.nsmallest(_CANDIDATES, first, key=lambda number: (-first[number], number))
    picked: list[int] = []
    while left:
        scores = {number: _score(sentences[number], weights) for number in left}
        best = min(left, key=lambda number: (-scores[number], number))
        left.remove(best)
        sentence = sentences[best]
        if sentence.size > characters and len(picked) >= at_least:
            continue
        picked.append(best)
        characters -= sentence.size
        for term in sentence.terms:
            weights[term] /= 2
    return picked


def _is_personal(messages: Sequence[MemoryText], sentence: _Sentence) -> bool:
    if messages[sentence.message].role != "user" or _NOTHING_SAID.search(sentence.text):
        return False
    return _FIRST_PERSON.search(sentence.text) is not None


def _score(sentence: _Sentence, weights: dict[str, float]) -> float:
    # fsum does not depend on the order of the terms.
    return math.fsum(weights[term] for term in sentence.terms) / max(len(sentence.terms), _SHORT)


# What was said


def _said(messages: Sequence[MemoryText]) -> Iterator[tuple[MemoryText, str]]:
    """Yield the sentences of users, except questions and conditions."""
    for message in messages:
        if message.role == "user":
            for part in _END.split(message.text.replace("\u2019", "'")):
                sentence = " ".join(part.split())
                if sentence and not _NOTHING_SAID.search(sentence):
                    yield message, sentence


def _facts(messages: Sequence[MemoryText], scope: MemoryScope) -> tuple[ExtractedFact, ...]:
    found: list[ExtractedFact] = []
    last: dict[tuple[str, str], int] = {}
    for message, sentence in _said(messages):
        # With a user id, the subject is always "user": author names may be missing or change.
        subject = "user" if scope.user_id is not None else speaker(message)
        name = message.author_name or "The user"
        for predicate, object, text in _stated(sentence, message.time.year):
            key = (subject.casefold(), predicate.casefold())
            at = last.get(key)
            if at is not None and found[at].object.casefold() == object.casefold():
                ids = dict.fromkeys((*found[at].memory_ids, message.id))
                found[at] = found[at].model_copy(update={"memory_ids": tuple(ids)})
                continue
            last[key] = len(found)
            found.append(
                ExtractedFact(
                    subject=subject,
                    predicate=predicate,
                    object=object,
                    text=f"{name} {text}",
                    valid_from=message.time,
                    memory_ids=(message.id,),
                )
            )
    return tuple(found[-_MOST:])


def _stated(sentence: str, year: int) -> Iterator[tuple[str, str, str]]:
    """Yield predicate, object and the sentence without its subject; the object of a claim is exact."""
    claims = (each.claim for each in statements(sentence, year=year))
    claimed = {claim.predicate: claim.object for claim in claims if claim is not None and claim.holds}
    for pattern, predicate in _FACTS:
        for match in pattern.finditer(sentence):
            what = claimed.get(predicate) or _what(match)
            yield predicate, what, f"{predicate} {what}"
    for match in _ALLERGIC.finditer(sentence):
        what = _what(match)
        yield f"is allergic to {what}", "no" if match["not"] else "yes", (
            f"is {'not ' if match['not'] else ''}allergic to {what}"
        )  # fmt: skip


def _preferences(messages: Sequence[MemoryText]) -> tuple[ExtractedPreference, ...]:
    found: dict[str, ExtractedPreference] = {}
    for message, sentence in _said(messages):
        for match in _PREFERENCE.finditer(sentence):
            what = _what(match)
            if _REQUEST.match(what):
                continue
            verb = " ".join(match["verb"].lower().split())
            text = f"{_THIRD.get(verb) or _third(verb)} {what}"
            before = found.get(text)
            ids = dict.fromkeys((*(before.memory_ids if before else ()), message.id))
            found[text] = ExtractedPreference(text=text, stated_at=message.time, memory_ids=tuple(ids))
    return tuple(found.values())[-_MOST:]


def _third(verb: str) -> str:
    return f"{verb}s"


def _what(match: re.Match[str]) -> str:
    return match["what"].rstrip(" .")
