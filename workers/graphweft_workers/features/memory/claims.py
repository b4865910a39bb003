"""What a user states: sentences about themselves, and the claims in them. By rules, without a model. Pure.

A statement is a sentence of a user that tells something lasting, or a part of one: not a question, a greeting, a wish
to the assistant or a condition. Some make a claim: subject, predicate and object, and whether it holds ("I no
longer eat meat" says that it does not). What is in the past ("I used to live in Oslo"), to come, quoted or doubtful
makes none, so it ends nothing. A claim is all that its part of the sentence says, but for a few words of time ("now",
"since March"): "I live in Nice in summer" makes none. In doubt a sentence makes no claim.

The words are English. A language is a ``Language``: its patterns, and the words that take a claim back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from graphweft_workers.features.memory.claim_forms import ClaimForm, Language
from graphweft_workers.features.memory.english_claims import ENGLISH, SIZE
from graphweft_workers.features.memory.places import is_place
from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.topics import KIN
from graphweft_workers.text.terms import name_key, terms

LONGEST: Final = 10_000
"""Characters of a message that are read for statements: a longer one is a document, whose memory has it all."""
LONGEST_OF_EVENT: Final = 20_000
"""Characters of all messages of an event."""
_SENTENCES: Final = 30
"""Sentences of a message in the first person that are read."""
_SENTENCES_OF_EVENT: Final = 100
_PARTS: Final = 3
"""Parts of a sentence, of which the last has the rest."""
_PIECES: Final = 1_000
"""Between ends of sentences. Beyond them, a message is no prose."""
_LONGEST_SENTENCE: Final = 400
"""Characters: a longer one makes no claim, and is no statement."""
_LONGEST_OBJECT: Final = 80
_SENTENCE: Final = re.compile(
    r"(?<!\b(?:Dr|Mr|Ms|St)\.)(?<!\bMrs\.)(?<!\bProf\.)(?<=[.!?])[\"\u201d)]*\s+"
    r"|(?<=[\u3002\uff01\uff1f])|[\r\n]+"
)
_QUOTES: Final = re.compile(r"[\"\u201c\u201d\u00ab\u00bb`<>{}|]|^\s*[>#]")
USER: Final = "user"
"""The subject of what users say about themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a statement says."""

    subject: str
    predicate: str
    object: str
    """Empty: it is about any object ("I am single" ends any partner)."""
    holds: bool = True
    is_sure: bool = True
    """Whether the subject is one person: "my sister" and "Anna" may be one of two, "my mother" is not."""
    thing: str = ""
    """What it is about, by the name that it may have alone: "Rex" of "a dog called Rex"; of others, their name."""
    ends: tuple[str, ...] = ()
    """The predicates of the claims about the same thing that it ends, with another object if it holds itself."""
    is_to_come: bool = False
    """Whether its sentence says from which day on it holds."""

    @property
    def object_key(self) -> str:
        """The object in the form that is equal for all its spellings."""
        return _ARTICLE.sub("", name_key(self.object))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStatement:
    """A sentence, or a part of one."""

    text: str
    claim: Claim | None = None


def statements(text: str, *, year: int = 0) -> Iterator[UserStatement]:
    """Yield what a message of a user states, in order. ``year`` is that of the message: "in 2019" is past then."""
    yield from _stated(_own_sentences(text), year)


def _stated(sentences: Iterable[str], year: int) -> Iterator[UserStatement]:
    for sentence in sentences:
        if tells_nothing(sentence, "user") or sentence.endswith("?"):
            continue
        for part, claims in _parts(sentence, ENGLISH, year):
            if claims:
                yield from (UserStatement(text=part, claim=claim) for claim in claims)
            elif _is_statement(part, ENGLISH):
                yield UserStatement(text=part)


@dataclass(slots=True)
class EventReader:
    """Reads what the messages of one event state: of each all or, once the event says too much, nothing."""

    _characters: int = LONGEST_OF_EVENT
    _sentences: int = _SENTENCES_OF_EVENT

    def statements(self, text: str, *, year: int) -> list[UserStatement]:
        """Return the statements of the next message."""
        self._characters -= min(len(text), LONGEST)
        if self._characters < 0:
            return []
        sentences = _own_sentences(text)
        self._sentences -= len(sentences)
        return list(_stated(sentences, year)) if self._sentences >= 0 else []


def is_doubtful(text: str, *, year: int = 0) -> bool:
    """Tell whether a statement is quoted, past, to come, wished or doubted: it does not say what holds now."""
    return (
        _QUOTES.search(text) is not None
        or any(int(each) != year for each in _YEAR.findall(text))
        or any(words.search(_spelt(text)) for words in (ENGLISH.unsure, ENGLISH.passing))
    )


def is_all_stated(text: str, found: Sequence[UserStatement]) -> bool:
    """Tell whether the statements are all that a message tells, so that nothing else of it is lost when they end."""
    if len(text) > LONGEST:
        return False
    left = [part for part in _SENTENCE.split(without(text, found)) if _LETTER.search(part)]
    return len(left) <= _SENTENCES and all(
        tells_nothing(part, "user") or ENGLISH.empty.match(part.strip()) or _JOIN.fullmatch(part.strip(" ,;.!"))
        for part in left
    )


def without(text: str, found: Iterable[UserStatement]) -> str:
    """Return a message without its statements, on one line."""
    rest = " ".join(text.replace("\u2019", "'").split())
    for each in found:
        rest = rest.replace(each.text, " ", 1)
    return rest


def _own_sentences(text: str) -> list[str]:
    """Return the sentences with a word of the first person, or about what has a name, at most ``_SENTENCES``."""
    plain = text[:LONGEST].replace("\u2019", "'")
    pieces = _SENTENCE.split(plain, maxsplit=_PIECES)[:_PIECES]
    said = (" ".join(each.split()) for each in pieces)
    own = (each for each in said if len(each) <= _LONGEST_SENTENCE and _may_state(each, ENGLISH))
    return list(islice(own, _SENTENCES))


def _may_state(sentence: str, language: Language) -> bool:
    return any(
        each is not None
        for each in (
            language.own.search(sentence), language.elided.match(sentence), language.named.match(sentence),
        )
    )  # fmt: skip


def _parts(sentence: str, language: Language, year: int) -> list[tuple[str, list[Claim]]]:
    """Return the parts of a sentence with their claims: it is divided where one of two makes a claim."""
    start = language.starts.search(sentence)
    if start is not None:
        rest = f"from then {language.will.sub(r'\1', sentence[: start.start()] + sentence[start.end() :])}"
        [(_, claims), *more] = _parts_of(rest, language, year)
        return [(sentence, [] if more else [replace(claim, is_to_come=True) for claim in claims])]
    return _parts_of(sentence, language, year)


def _parts_of(sentence: str, language: Language, year: int) -> list[tuple[str, list[Claim]]]:
    found: list[tuple[str, list[Claim]]] = []
    begin = 0
    places = list(islice(language.parts.finditer(sentence), _PARTS - 1))
    for match in places:
        before = sentence[begin : match.start()].strip()
        if before and (claims := _claims(before, language)):
            found.append((before, claims))
            begin = match.end()
    last = sentence[begin:].strip()
    found.append((last, _claims(last, language)))
    if not any(claims for _, claims in found) and language.changed.search(sentence):
        found = _one_of_two(sentence, language) or found
    if not any(claims for _, claims in found):
        return found
    if _QUOTES.search(sentence) or any(int(each) != year for each in _YEAR.findall(sentence)):
        return [(sentence, [])]
    if language.unsure.search(_spelt(sentence)):
        return [(sentence, [])]
    if any(not claims and language.undone.search(_spelt(part)) for part, claims in found):
        return [(part, []) for part, _ in found]
    return found


def _one_of_two(sentence: str, language: Language) -> list[tuple[str, list[Claim]]]:
    """Return two parts of a sentence of which one is a claim: "The handover is done, Omar is my new boss." """
    for match in islice(language.clauses.finditer(sentence), _PARTS - 1):
        before, after = sentence[: match.start()].strip(), sentence[match.end() :].strip()
        if language.elided.match(after) and not language.speaker.match(before):
            continue  # "My sister quit and became a teacher."
        found = [(part, _claims(part, language) if language.changed.search(part) else []) for part in (before, after)]
        if any(claims for _, claims in found):
            is_told = any(not claims and language.story.search(part) for part, claims in found)
            return [] if is_told else found
    return []


def _is_statement(part: str, language: Language) -> bool:
    if language.own.search(part) is None or _QUOTES.search(part):
        return False
    return language.empty.match(_spelt(part)) is None


def _spelt(text: str) -> str:
    """Return a text with the apostrophes that people leave out."""
    return _NO_APOSTROPHE.sub(r"\1'\2", text)


def _claims(part: str, language: Language) -> list[Claim]:
    """Return the claims that a part of a sentence is, with nothing more than words of time."""
    if language.passing.search(part):
        return []
    aside = language.aside.search(part)
    if aside is not None:
        if language.undone.search(_spelt(part[aside.start() :])):
            return []
        part = part[: aside.start()]
    part = whole = _with_places(_spelt(_SYMBOLS.sub("", part)).rstrip(" .!,;"))
    for _ in range(_TAILS):
        tail = language.tail.search(part, max(0, len(part) - _LONGEST_TAIL))
        if tail is None:
            break
        part = part[: tail.start()].rstrip(" ,")
    is_at_times = language.at_times.search(whole, len(part)) is not None
    lead = language.lead.match(part)
    begin = lead.end() if lead else 0
    if language.elided.match(part, begin):
        part, begin = f"i {part[begin:]}", 0
    for mood in language.moods:
        match = mood.words.match(part, begin)
        if match is not None and (mood.holds or not is_at_times):
            said = mood.said + part[match.end() :]
            if not mood.holds:
                said = language.no_more.sub("", said)
            if found := _by_forms(said, 0, language, holds=mood.holds):
                return found
    return _by_forms(part, begin, language, is_change=_NEW.search(whole) is not None, is_at_times=is_at_times)


def _by_forms(
    part: str,
    begin: int,
    language: Language,
    *,
    holds: bool = True,
    is_change: bool = False,
    is_at_times: bool = False,
) -> list[Claim]:
    for form in language.patterns:
        match = form.words.fullmatch(part, begin)
        if match is None or not (holds or form.holds):
            continue
        # "I don't play tennis every day" says that somebody plays.
        if not holds and any(match.groupdict().get(name) for name in _DETAILS):
            continue
        if is_at_times and match.groupdict().get("some"):  # "I work at the library today."
            continue
        claim = _claim_of(match, form, language, holds=holds and form.holds, is_change=is_change)
        if claim is not None:
            also = form.also if holds else ()
            return [
                claim,
                *(replace(claim, predicate=each, object="", holds=False, thing="", ends=()) for each in also),
            ]
    return []


def _with_places(part: str) -> str:
    """Return a part of a sentence with the capital letters of places that people leave out: "i live in oslo"."""
    for match in reversed(list(_BEFORE_PLACE.finditer(part))):
        begin = match.end()
        if not begin and not part.endswith(("home", "home now")):  # "oslo is my home"
            continue
        words = part[begin:].split(" ", _LONGEST_PLACE)[:_LONGEST_PLACE]
        for count in range(len(words), 0, -1):
            name = " ".join(words[:count])
            if is_place(name) and name not in _WORDS_TOO:
                spelt = " ".join(each.capitalize() for each in words[:count])
                part = part[:begin] + spelt + part[begin + len(name) :]
                break
    return part


def _claim_of(
    match: re.Match[str], form: ClaimForm, language: Language, *, holds: bool, is_change: bool
) -> Claim | None:
    groups = match.groupdict()
    what = (groups.get("what") or "").strip()
    if len(what) > _LONGEST_OBJECT or (form.is_name and not _is_name(what)):
        return None
    if form.is_place and not is_place(_ARTICLE.sub("", name_key(what))):
        return None
    if not what and groups.get("any") is None:
        return None
    if not form.is_name and (_ABOUT_THIS.match(what) or language.detail.search(what) or _AND_DONE.search(what)):
        return None
    name = groups.get("name")
    if form.is_kind:
        kind = _VAGUE.sub("", _CALLED.sub(" ", what))
        # "I sold my old boat" may be said of one of two.
        if not holds and _VAGUE.match(what):
            return None
        if name is None and kind != what and (called := _CALLED.search(what)):
            name = what[called.end() :]
        what = kind if groups.get("name") is None else f"{kind} {name}"
    predicate = form.predicate
    of = groups.get("of")
    if of:
        predicate = f"{predicate} {language.bases.get(name_key(of), name_key(of))}"
    thing = _thing(name or what or of or "", language)
    ends = (predicate, *form.ends) if form.ends else ()
    who = " ".join((groups.get("who") or "").split())
    low = name_key(who)
    if not who or language.own.fullmatch(low) is not None:
        return Claim(subject=USER, predicate=predicate, object=what, holds=holds, thing=thing, ends=ends)
    kin = low.removeprefix("my ")
    relative = language.relatives.get(kin, kin)
    named = _is_name(who.split(" ")[-1]) and low not in language.relatives
    is_alone = named and low == kin
    if (not named and low == kin and low not in language.relatives) or (is_alone and not _is_name(who)):
        return None
    # Of two persons with one name, or two sisters, what one does ends nothing of the other. But who has moved lived
    # elsewhere before: "Greta has moved to Cologne" is about her of whom that was said.
    about = name_key(_KIN.sub("", who)) if named else f"my {relative}"
    changes = (form.is_change or is_change) and (is_alone or not (named or relative in language.many_of_a_kind))
    return Claim(
        subject=low if named else f"my {relative}", predicate=predicate, object=what, holds=holds,
        is_sure=not is_alone and (named or relative in language.one_of_a_kind),
        thing=f"{PERSON}{about}", ends=(predicate,) if changes else (),
    )  # fmt: skip


def _thing(what: str, language: Language) -> str:
    """Return a name in the form that is equal for all its spellings and numbers."""
    plain = language.unnamed.sub("", what).strip()
    named = "name " if _is_name(plain) else ""  # "The kiwi is gone" is not about the parrot Kiwi
    return named + " ".join(dict.fromkeys(terms(plain)))


def _is_name(what: str) -> bool:
    name = what.removeprefix("the ")
    is_capital = name[:1].isalpha() and (not name[:1].islower() or name[1:2].isupper())
    return is_capital and name not in _NO_NAMES and name.casefold() not in _ORIGINS


PERSON: Final = "person "
"""Before the name of somebody else, as what a claim is about."""
_KIN: Final = re.compile(rf"^my {KIN} ", re.IGNORECASE)
_NEW: Final = re.compile(r"\b(?:new|now|nowadays|these days)\b", re.IGNORECASE)
_DETAILS: Final = ("often", "much", "beside", "at")
"""Groups of what somebody may do otherwise."""
_ARTICLE: Final = re.compile(r"^(?:a|an|the|my|our|some|any) ")
_JOIN: Final = re.compile(r"(?:and|but|so|also|then|or)", re.IGNORECASE)
_YEAR: Final = re.compile(r"\b(?:in|from|back in|of) ((?:19|20)\d\d)\b", re.IGNORECASE)
_LETTER: Final = re.compile(r"[^\W_]")
_NO_APOSTROPHE: Final = re.compile(
    r"\b(i(?=m\b|ve\b)|we(?=ve\b)|(?:do|does|did|ca|wo|is|was|has|have|had|would|could|should)n(?=t\b))(m|ve|t)\b",
    re.IGNORECASE,
)
_PICTURE: Final = "[\u2190-\u2bff\u3030\u303d\ufe0f\u200d\U0001f000-\U0001faff]"
_SYMBOLS: Final = re.compile(
    rf"^(?:{_PICTURE}\s*)+|(?:\s*(?:{_PICTURE}|[:;=8][-o']?[)(DPp3]|(?<=\s)(?:lol|haha\w*|xd|yay)\b))+[\s.!]*$",
    re.IGNORECASE,
)
"""Pictures and smileys around a sentence."""
_TAILS: Final = 3
_LONGEST_TAIL: Final = 40
_VAGUE: Final = re.compile(rf"^(?:{SIZE} )+", re.IGNORECASE)
_CALLED: Final = re.compile(r" (?:called|named) (?=[\w' -]+$)", re.IGNORECASE)
_BEFORE_PLACE: Final = re.compile(r"(?:^|\b(?:in|to|from|out of) )(?=[^\W\d_])")
_LONGEST_PLACE: Final = 3
"""Words of a name of a place that people write in lower case."""
_WORDS_TOO: Final = frozenset({"nice", "split", "bath", "cork", "us", "jersey", "mobile", "turkey", "chad", "queens"})
"""Places that are words in lower case."""
_ABOUT_THIS: Final = re.compile(
    r"(?:it|this|that|them|him|her|you|your|these|those|what|how|when|to (?:know|ask|see|say|talk|thank|hear))\b",
    re.IGNORECASE,
)
_AND_DONE: Final = re.compile(
    r"\b(?:and|then) (?:(?:then|also|i|we) )?(?:sold|bought|gave|got|went|took|made|lost|found|left|put|sent|had|did|"
    r"has|have|do|does|[a-z]+ed)\b",
    re.IGNORECASE,
)
"""What else somebody did: "a Tesla and sold the Volvo" is no thing."""
_NO_NAMES: Final = frozenset({
    "I", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "January", "February",
    "March", "April", "May", "June", "July", "August", "September", "October", "November", "December", "Back",
    "Later", "Today", "Tomorrow", "He", "She", "It", "They", "We", "You", "This", "That", "These", "Those", "Who",
    "Someone", "Somebody", "Everyone", "Everybody", "Nobody", "Anyone", "Anybody", "People", "There", "What",
    "Something", "Nothing", "Everything", "Time", "God", "Life", "My", "Our", "Your", "His", "Her", "Their", "The",
})  # fmt: skip
_ORIGINS: Final = frozenset({
    "american", "australian", "austrian", "belgian", "brazilian", "british", "canadian", "chilean", "chinese",
    "colombian", "croatian", "cuban", "czech", "danish", "dutch", "egyptian", "english", "estonian", "ethiopian",
    "finnish", "french", "german", "greek", "hungarian", "icelandic", "indian", "indonesian", "iranian", "iraqi",
    "irish", "israeli", "italian", "jamaican", "japanese", "kenyan", "korean", "latvian", "lebanese",
    "lithuanian", "malaysian", "mexican", "moroccan", "nigerian", "norwegian", "pakistani", "peruvian", "polish",
    "portuguese", "romanian", "russian", "scottish", "serbian", "slovak", "somali", "spanish", "swedish", "swiss",
    "syrian", "taiwanese", "thai", "tunisian", "turkish", "ukrainian", "vietnamese", "welsh", "african", "asian",
    "european", "catholic", "muslim", "jewish", "hindu", "buddhist", "protestant", "jehovah",
})  # fmt: skip
"""What somebody is, and nobody's name."""
