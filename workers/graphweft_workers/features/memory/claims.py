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
from dataclasses import dataclass
from itertools import islice
from typing import Final

from graphweft_workers.features.memory.places import is_place
from graphweft_workers.features.predicates import SERVICES
from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.topics import KIN
from graphweft_workers.text.terms import name_key

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
    """Whether the subject is one person: "my sister" may be one of two, "my mother" is not."""

    @property
    def object_key(self) -> str:
        """The object in the form that is equal for all its spellings."""
        return _ARTICLE.sub("", name_key(self.object))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStatement:
    """A sentence, or a part of one."""

    text: str
    claim: Claim | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimForm:
    """A form of words that is a claim as a whole: the group ``what`` is the object, and ``who`` the subject."""

    words: re.Pattern[str]
    predicate: str
    holds: bool = True
    is_name: bool = False
    """Whether the object is a name, which begins with a capital letter."""
    is_kind: bool = False
    """Whether the object is one of its kind, without what is vague of it: "a small dog called Max" is the dog Max, and
    "a red bicycle" another one than a blue one. The group ``name`` is its name."""
    is_place: bool = False
    """Whether the object is a known place: who moved to Linux lives where they did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The words of a language."""

    lead: re.Pattern[str]
    """Words before a claim, which say nothing of it."""
    tail: re.Pattern[str]
    """Words of time behind a claim."""
    detail: re.Pattern[str]
    """Words by which an object is more than a thing: "nuts with shells"."""
    undone: re.Pattern[str]
    """Words by which another part of the sentence may take a claim back."""
    patterns: Sequence[ClaimForm]
    own: re.Pattern[str]
    """Words of the first person."""
    empty: re.Pattern[str]
    """The beginning of sentences that are about the conversation, or polite."""
    unsure: re.Pattern[str]
    """Words of what is past, to come, wished or doubted."""
    passing: re.Pattern[str]
    """Words of what somebody has for a moment ("I have a question"): that part of a sentence makes no claim."""
    parts: re.Pattern[str]
    """What is between two parts of a sentence that each say something in the first person."""
    aside: re.Pattern[str]
    """The beginning of what is told beside a claim, in the same part of a sentence."""
    one_of_a_kind: frozenset[str]
    """Relatives and others of whom a user has one."""


def statements(text: str, *, year: int = 0) -> Iterator[UserStatement]:
    """Yield what a message of a user states, in order. ``year`` is that of the message: "in 2019" is past then."""
    yield from _stated(_own_sentences(text), year)


def _stated(sentences: Iterable[str], year: int) -> Iterator[UserStatement]:
    for sentence in sentences:
        if tells_nothing(sentence, "user") or sentence.endswith("?"):
            continue
        for part, claim in _parts(sentence, ENGLISH, year):
            if claim is not None or _is_statement(part, ENGLISH):
                yield UserStatement(text=part, claim=claim)


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
    """Return the sentences with a word of the first person, at most ``_SENTENCES``."""
    plain = text[:LONGEST].replace("\u2019", "'")
    pieces = _SENTENCE.split(plain, maxsplit=_PIECES)[:_PIECES]
    own = (" ".join(each.split()) for each in pieces if ENGLISH.own.search(each) is not None)
    return list(islice((said for said in own if len(said) <= _LONGEST_SENTENCE), _SENTENCES))


def _parts(sentence: str, language: Language, year: int) -> list[tuple[str, Claim | None]]:
    """Return the parts of a sentence with their claims: it is divided where what is before makes a claim."""
    found: list[tuple[str, Claim | None]] = []
    begin = 0
    for match in islice(language.parts.finditer(sentence), _PARTS - 1):
        before = sentence[begin : match.start()].strip()
        if before and (claim := _claim(before, language)) is not None:
            found.append((before, claim))
            begin = match.end()
    last = sentence[begin:].strip()
    found.append((last, _claim(last, language)))
    if all(claim is None for _, claim in found):
        return found
    if _QUOTES.search(sentence) or any(int(each) != year for each in _YEAR.findall(sentence)):
        return [(sentence, None)]
    if language.unsure.search(_spelt(sentence)):
        return [(sentence, None)]
    if any(claim is None and language.undone.search(_spelt(part)) for part, claim in found):
        return [(part, None) for part, _ in found]
    return found


def _is_statement(part: str, language: Language) -> bool:
    if language.own.search(part) is None or _QUOTES.search(part):
        return False
    return language.empty.match(_spelt(part)) is None


def _spelt(text: str) -> str:
    """Return a text with the apostrophes that people leave out."""
    return _NO_APOSTROPHE.sub(r"\1'\2", text)


def _claim(part: str, language: Language) -> Claim | None:
    """Return the claim that a part of a sentence is, with nothing more than words of time."""
    if language.passing.search(part):
        return None
    aside = language.aside.search(part)
    if aside is not None:
        if language.undone.search(_spelt(part[aside.start() :])):
            return None
        part = part[: aside.start()]
    part = _with_places(_spelt(_SYMBOLS.sub("", part)).rstrip(" .!,;"))
    for _ in range(_TAILS):
        tail = language.tail.search(part, max(0, len(part) - _LONGEST_TAIL))
        if tail is None:
            break
        part = part[: tail.start()].rstrip(" ,")
    lead = language.lead.match(part)
    begin = lead.end() if lead else 0
    for form in language.patterns:
        match = form.words.fullmatch(part, begin)
        if match is not None and (claim := _claim_of(match, form, language)) is not None:
            return claim
    return None


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


def _claim_of(match: re.Match[str], form: ClaimForm, language: Language) -> Claim | None:
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
    if form.is_kind:
        kind = _VAGUE.sub("", _CALLED.sub(" ", what))
        # "I sold my old boat" may be said of one of two.
        if not form.holds and _VAGUE.match(what):
            return None
        what = f"{kind} {groups['name']}" if groups.get("name") else kind
    predicate = form.predicate
    of = groups.get("of")
    if of:
        predicate = f"{predicate} {_BASES.get(name_key(of), name_key(of))}"
    who = " ".join((groups.get("who") or "").split())
    low = name_key(who)
    own = not who or language.own.fullmatch(low) is not None
    sure = own or low.removeprefix("my ") in language.one_of_a_kind or _is_name(who.split(" ")[-1])
    return Claim(
        subject=USER if own else low, predicate=predicate, object=what, holds=form.holds, is_sure=sure,
    )  # fmt: skip


def _is_name(what: str) -> bool:
    name = what.removeprefix("the ")
    return name[:1].isalpha() and not name[:1].islower() and name not in _NO_NAMES and name.casefold() not in _ORIGINS


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
_SIZE: Final = r"(?:small|little|tiny|big|large|huge|old|new|young|nice|cute|lovely|beautiful)"
_QUALITY: Final = rf"(?:{_SIZE}|red|green|blue|yellow|black|white|brown|gr[ae]y|orange|pink|purple|silver)"
_VAGUE: Final = re.compile(rf"^(?:{_SIZE} )+", re.IGNORECASE)
_CALLED: Final = re.compile(r" (?:called|named) (?=[\w' -]+$)", re.IGNORECASE)
_PET: Final = r"(?:dog|cat|hamster|rabbit|parrot|horse|bird|goldfish|puppy|kitten|turtle)"
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
    "Later", "Today", "Tomorrow",
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

# English

_LEAD: Final = (
    r"(?:(?:hi|hello|hey|well|yes|no|oh|ok|okay|so|and|but|actually|now|today|yesterday|recently|finally|currently|"
    r"anyway|sorry|please|nowadays|these days|by the way|btw|fyi|for the record|just so you know|"
    r"please (?:note|remember)(?: that)?|remember(?: that)?|note(?: that)?|update|correction|news|good news|"
    r"bad news|big news|guess what|from now on|as of (?:last |this )?\w+|since (?:last )?\w+|"
    r"last (?:week|month|year|spring|summer|autumn|winter|\w+day)|a (?:week|month) ago|"
    r"(?:i|we)(?: have|'ve)? (?:just )?moved(?: house| home)?(?=[,:;]))\b[,:;!.\s-]*){0,5}"
)
_WHEN: Final = (
    r"(?:(?:19|20)\d\d|yesterday|today|night|weekend|week|month|year|spring|summer|autumn|fall|winter|january|february|march|april|"
    r"may|june|july|august|september|october|november|december|(?:mon|tues|wednes|thurs|fri|satur|sun)day)"
)
_TAIL: Final = (
    r"(?:,? (?:just so you know|just saying|by the way|btw|fyi|you know|as you know|as i (?:said|mentioned|told you)|"
    r"for the record|in case you (?:wonder|need it)|though|after all|"
    r"now|currently|nowadays|today|yesterday|recently|again|instead|these days|from now on|please|actually|"
    rf"officially|(?:since|as of) (?:last )?{_WHEN}|last {_WHEN}|"
    r"(?:a|two|three|some|a few|a couple of) (?:days?|weeks?|months?) ago))$"
)
_DETAIL: Final = (
    r"\b(?:with|from|at|in|on|when|whenever|that|as|who|which|where|because|since|so|than|for|by|after|before|during|"
    r"while|without|but|only|except|unless|though|although|too|more|most|much|not|just|every|sometimes|often|here|"
    r"there|today|yesterday|tonight|weekends?|am|is|are|was|were|i|you|he|she|they|we)\b"
)
_OFTEN: Final = r"(?: (?:really|still|now|just|absolutely|currently|recently|finally|actually|already|officially)){0,3}"
_I: Final = r"(?:i|we)"
_I_AM: Final = r"(?:i am|i'm|we are|we're)"
_I_HAVE: Final = r"(?:i(?: have|'ve)?|we(?: have|'ve)?)"
_CAPITAL: Final = r"(?-i:[^\W\d_a-z\u00df-\u00f6\u00f8-\u00ff])"
"""A letter that may begin a name: a capital one, or of a script without. ``_is_name`` looks at the others."""
_THEY: Final = rf"(?P<who>my {KIN}(?: {_CAPITAL}[\w'-]*)?)"
_WHAT: Final = r" (?P<what>(?:(?:Dr|Mrs?|Ms|Prof|St)\. )?[^,;:!?()\n]+)"
_NAME: Final = (
    rf" (?P<what>(?:the )?(?:(?:Dr|Mrs?|Ms|Prof|St)\.? )?{_CAPITAL}[\w&'-]*"
    rf"(?: (?:(?:de|da|do|la|le|am|der|upon|of|del|di) )?{_CAPITAL}[\w&'-]*){{0,3}})"
)
_SEASON: Final = (
    r"(?: in (?:early |late )?(?:spring|summer|autumn|fall|winter|january|february|march|april|may|june|july|august|"
    r"september|october|november|december)| on (?:mon|tues|wednes|thurs|fri|satur|sun)day)?"
)
"""Behind what somebody has done: it says when."""
_KIND_OF_FIRM: Final = (
    r"(?:hospital|clinic|school|university|college|library|bank|bakery|museum|hotel|pharmacy|restaurant|airport|"
    r"council|police|court|theatre|theater|cafe|factory|brewery|zoo)"
)
_FIRM: Final = rf"{_NAME[:-1]}(?: {_KIND_OF_FIRM})?)"
_HOW_OFTEN: Final = (
    r"(?: (?:daily|(?:every|each) (?:single )?(?:day|morning|evening|night|week|weekend|(?:mon|tues|wednes|thurs|fri|"
    r"satur|sun)day)|on (?:(?:mon|tues|wednes|thurs|fri|satur|sun|week)days|weekends)))?"
    r"(?:, (?:\w+ )?(?:cups?|glass(?:es)?|times|hours?|packs?) (?:a|every|per) (?:day|week))?"
)
_MUCH: Final = r"(?: (?:(?:far |way )?too much|a lot of|lots of|plenty of))?"
_PARTNER: Final = r"(?:girlfriend|boyfriend|wife|husband|partner|fianc[e\u00e9]e?|spouse)"
_ONE_SERVICE: Final = f"(?:{'|'.join(SERVICES)})"
_DO: Final = r"(?:drink|eat|smoke|play|use|speak|watch|take|ride|read|wear|collect|practi[sc]e|teach)"
_DOING: Final = (
    r"(?:drinking|eating|smoking|playing|using|speaking|watching|taking|riding|reading|wearing|collecting|"
    r"practi[sc]ing|teaching)"
)
_BASES: Final = dict(zip(_DOING[3:-1].replace("practi[sc]ing", "practising").split("|"),
                         _DO[3:-1].replace("practi[sc]e", "practise").split("|"), strict=True)) | {
    "practicing": "practise", "practice": "practise",
}  # fmt: skip
_DATE: Final = (
    r"(?P<what>(?:\d[\d./-]*(?:st|nd|rd|th)?(?: of)?(?: [a-z]+)?(?: \d+)?|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|"
    r"nov|dec)[a-z]* (?:the )?\d+(?:st|nd|rd|th)?(?: \d+)?))"
)
_BE_BACK: Final = r"(?:back |over |down |up |out |house )?"


_COMPANY: Final = (
    r"(?: (?:together )?with (?:my|our)(?: (?!(?:in|at|on|from|for|until|till|during|when|while|every|if|because|since)"
    r"\b)[\w'&-]+){1,10})?"
)
"""Behind a home: it says with whom, and no less where."""


def _pattern(words: str, predicate: str, **more: bool) -> ClaimForm:
    return ClaimForm(words=re.compile(words, re.IGNORECASE), predicate=predicate, **more)


def _ended(words: str, predicate: str, **more: bool) -> ClaimForm:
    return _pattern(words, predicate, holds=False, **more)


_ANYMORE: Final = r" (?P<what>[^,;:!?()\n]+?) (?:anymore|any more|any longer)"
_MAYBE_ANYMORE: Final = r" (?P<what>[^,;:!?()\n]+?)(?: (?:anymore|any more|any longer))?"
_AT_FIRM: Final = (
    rf"(?: (?:at|for|in) (?:(?:the )?(?:St\. )?{_CAPITAL}[\w&'-]*(?: {_CAPITAL}[\w&'-]*){{0,3}}(?: {_KIND_OF_FIRM})?"
    rf"|(?:an?|the) (?:[a-z]+ )?{_KIND_OF_FIRM}))?"
)
_PROFESSION: Final = (
    r"(?:teacher|nurse|midwife|paramedic|doctor|surgeon|dentist|pharmacist|vet|veterinarian|physiotherapist|"
    r"psychologist|psychiatrist|therapist|carpenter|plumber|electrician|mechanic|welder|bricklayer|roofer|engineer|"
    r"developer|programmer|administrator|architect|designer|analyst|consultant|accountant|lawyer|solicitor|"
    r"librarian|journalist|translator|interpreter|scientist|researcher|physicist|chemist|"
    r"biologist|professor|lecturer|principal|headteacher|chef|butcher|barista|waiter|waitress|bartender|"
    r"hairdresser|barber|farmer|firefighter|police officer|policeman|policewoman|soldier|"
    r"postman|pilot|flight attendant|(?:bus|taxi|truck|lorry|train|tram) driver|social worker|secretary|"
    r"receptionist|cashier|electrical engineer|(?:project|product|office|shop|store|hotel) manager|estate agent)"
)
_NOT_BY_TRADE: Final = (
    r"(?!(?:retired|former|trained|trainee|aspiring|amateur|hobby|part-time|weekend|volunteer|would-be|ex|past|"
    r"future|terrible|bad|lousy|good|great|decent|better|worse|big|huge)\b)"
)
_GREETED: Final = f"(?:{'|'.join(f'(?<={each})' for each in ('hi ', 'hi, ', 'hey ', 'hey, ', 'hello ', 'hello, '))})"
"""Behind a greeting "I'm Robert" is a name."""
_ENGLISH: Final = (
    # Where somebody lives
    _ended(rf"{_I}{_OFTEN} no longer live (?:in|at){_NAME}", "lives in", is_name=True),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) live (?:in|at){_ANYMORE}", "lives in", is_name=True),
    _ended(rf"{_I_HAVE}{_OFTEN} moved (?:away from|out of){_NAME}", "lives in", is_name=True),
    _pattern(rf"{_I}{_OFTEN} (?:live|reside) (?:in|at|on){_NAME}{_COMPANY}", "lives in", is_name=True),
    _pattern(
        rf"(?:{_I}{_OFTEN} live|{_I_AM}{_OFTEN} living) (?:in|on|at) (?:\d+\w? )?(?:{_CAPITAL}[\w'-]* ){{1,3}}"
        rf"(?:Street|St\.?|Road|Rd\.?|Avenue|Lane|Square|Drive|Place|Close),? in{_NAME}", "lives in", is_name=True,
    ),
    _pattern(
        rf"(?:{_I_AM}|{_I_HAVE} been){_OFTEN} (?:living|based|settled) (?:in|at){_NAME}{_COMPANY}",
        "lives in", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} moved {_BE_BACK}(?:from {_CAPITAL}[\w -]*? )?to{_NAME}{_COMPANY}{_SEASON}",
        "lives in", is_name=True, is_place=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:relocated|moved house) (?:from {_CAPITAL}[\w -]*? )?to{_NAME}{_SEASON}",
        "lives in", is_name=True,
    ),
    _pattern(rf"{_I_HAVE}{_OFTEN} settled (?:down )?in{_NAME}", "lives in", is_name=True),
    _pattern(
        rf"{_I_AM}{_OFTEN} renting (?:a|an) (?:new )?(?:flat|apartment|house|place|room) in{_NAME}",
        "lives in", is_name=True,
    ),
    _pattern(
        rf"(?:my|our){_OFTEN} (?:(?:new|current) )?(?:home|flat|apartment|house|place|address|home address) "
        rf"is{_OFTEN}(?: (?:in|at))?{_NAME}", "lives in", is_name=True,
    ),
    _pattern(rf"{_I}{_OFTEN} call{_NAME} (?:my )?home", "lives in", is_name=True),
    _pattern(rf"{_NAME[1:]} (?:is|has become){_OFTEN} (?:my|our) (?:new )?home", "lives in", is_name=True),
    _pattern(rf"{_THEY}{_OFTEN} lives in{_NAME}", "lives in", is_name=True),
    _pattern(rf"{_THEY}(?: has|'s)?{_OFTEN} moved {_BE_BACK}to{_NAME}", "lives in", is_name=True, is_place=True),
    # Work
    _ended(rf"{_I}{_OFTEN} no longer work (?:at|for|with){_NAME}", "works for", is_name=True),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) work (?:at|for|with){_ANYMORE}", "works for", is_name=True),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|left|lost) my job (?:at|with){_NAME}{_SEASON}", "works for", is_name=True),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:left|quit){_NAME}{_SEASON}", "works for", is_name=True),
    _ended(
        rf"{_I} (?:was|got|have been){_OFTEN} (?:fired|laid off|let go) (?:from|by){_NAME}", "works for", is_name=True
    ),
    _ended(rf"{_I} (?:was|got|have been){_OFTEN} (?:fired|laid off|let go)(?P<any>)", "works for"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|left|lost) my job(?P<any>)", "works for"),
    _ended(rf"(?:{_I_HAVE}{_OFTEN} retired|{_I_AM}{_OFTEN} (?:unemployed|retired))(?P<any>)", "works for"),
    _pattern(
        rf"(?:{_I}{_OFTEN} work|{_I_AM}{_OFTEN} working) as an? (?P<what>[^,;:!?()\n]+?){_AT_FIRM}", "works as"
    ),
    _pattern(
        rf"{_I_AM}{_OFTEN} an? {_NOT_BY_TRADE}(?P<what>(?:{_NOT_BY_TRADE}[a-z]+ ){{0,2}}{_PROFESSION}){_AT_FIRM}",
        "works as",
    ),
    _pattern(rf"my{_OFTEN} (?:(?:new|current) )?(?:job title|profession|occupation) is{_OFTEN}{_WHAT}", "works as"),
    _pattern(rf"{_I} (?:was|got|have been){_OFTEN} promoted to{_WHAT}", "works as"),
    _pattern(rf"{_I}{_OFTEN} work (?:at|for){_FIRM}", "works for", is_name=True),
    _pattern(rf"{_I_AM}{_OFTEN} (?:working (?:at|for)|employed (?:at|by)){_FIRM}", "works for", is_name=True),
    _pattern(rf"{_I_HAVE}{_OFTEN} joined{_FIRM} as (?:an?|the|their) [a-z ]+", "works for", is_name=True),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:started (?:working|(?:a|my) new job)|got (?:a (?:new )?job|hired)|took a (?:new "
        rf")?job) (?:at|for|by|with){_NAME}", "works for", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:changed|switched) (?:jobs|employers?|companies) (?:and (?:went|moved) )?to{_NAME}",
        "works for", is_name=True,
    ),
    _pattern(rf"my{_OFTEN} (?:(?:new|current) )?employer is{_OFTEN}{_NAME}", "works for", is_name=True),
    _pattern(rf"my{_OFTEN} (?:(?:new|current) )?job is{_OFTEN} (?:at|with){_NAME}", "works for", is_name=True),
    _pattern(rf"{_THEY}{_OFTEN} works (?:at|for){_NAME}", "works for", is_name=True),
    _pattern(rf"{_THEY}{_OFTEN} works as (?:an? )?(?P<what>[^,;:!?()\n]+)", "works as"),
    _pattern(
        rf"(?:{_I_AM}{_OFTEN} studying|{_I}{_OFTEN} study) (?!(?:every|hard|a lot|all|late|alone|together|to|abroad|"
        rf"now|until|best|about)\b)(?P<what>[^,;:!?()\n]+?){_AT_FIRM}", "studies",
    ),
    _pattern(rf"(?:my major is|{_I_HAVE}{_OFTEN} (?:switched|changed) my major to){_OFTEN}{_WHAT}", "studies"),
    # Names
    _ended(rf"(?:don't|do not|stop) call(?:ing)? me{_NAME}(?: anymore| any more)?", "is called", is_name=True),
    _pattern(rf"(?:my{_OFTEN} (?:new )?name is{_OFTEN}|my name's){_NAME}", "is called", is_name=True),
    _pattern(rf"(?:{_I_AM}{_OFTEN} called|call me){_NAME}", "is called", is_name=True),
    _pattern(rf"{_GREETED}(?:i am|i'm)(?! OK\b){_NAME}", "is called", is_name=True),
    _pattern(rf"{_I_HAVE}{_OFTEN} changed my name to{_NAME}", "is called", is_name=True),
    # Partners
    _ended(
        rf"{_I_HAVE}{_OFTEN} (?:broke(?:n)? up|split up|separated) (?:with|from){_NAME}",
        "has partner", is_name=True,
    ),
    _ended(
        rf"(?P<what>{_CAPITAL}[\w'-]*) and i(?: have|'ve)?{_OFTEN} (?:broke(?:n)? up|split up|separated|"
        rf"divorced|got divorced|are (?:divorced|separated|no longer together|not together any\s*more))",
        "has partner", is_name=True,
    ),
    _ended(
        rf"(?P<what>{_CAPITAL}[\w'-]*) (?:has )?(?:left|dumped|(?:broke|broken|split) up with) me", "has partner",
        is_name=True,
    ),
    _ended(
        rf"my {_PARTNER} (?:and i (?:have )?(?:broke(?:n)? up|split up|separated|divorced|got divorced)|"
        rf"(?:has )?(?:left|dumped|(?:broke|broken|split) up with) me)(?P<any>)", "has partner",
    ),
    _ended(
        rf"(?:{_I_AM}{_OFTEN} (?:single|divorced|no longer married|not married any\s*more)|{_I_HAVE}{_OFTEN} "
        rf"(?:got|gotten) divorced|we (?:broke up|split up))(?P<any>)", "has partner",
    ),
    _pattern(
        rf"my{_OFTEN} (?:(?:new|current) )?{_PARTNER}(?: is|'s){_OFTEN} (?:(?:called|named) )?{_NAME[1:]}",
        "has partner", is_name=True,
    ),
    _pattern(rf"my{_OFTEN} (?:new )?{_PARTNER}'s name is{_NAME}", "has partner", is_name=True),
    _pattern(
        rf"{_I_AM}{_OFTEN} (?:dating|engaged to|married to|together with|in a relationship with){_NAME}",
        "has partner", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:married|got (?:married|engaged) to|started (?:dating|seeing)){_NAME}",
        "has partner", is_name=True,
    ),
    _pattern(
        rf"(?P<what>{_CAPITAL}[\w'-]*) and i (?:are|got){_OFTEN} (?:married|engaged|together|dating|a couple)",
        "has partner", is_name=True,
    ),
    _pattern(rf"(?P<what>{_CAPITAL}[\w'-]*) is{_OFTEN} my (?:new )?{_PARTNER}", "has partner", is_name=True),
    # What somebody has one of
    _pattern(
        rf"my{_OFTEN} (?:(?:new|current) )?(?P<of>{_ONE_SERVICE}) is{_OFTEN} (?:(?:called|named) )?{_NAME[1:]}",
        "has", is_name=True,
    ),
    _pattern(
        rf"{_I_HAVE}{_OFTEN} (?:switched|changed|moved) to{_NAME} as my (?:new )?(?P<of>{_ONE_SERVICE})",
        "has", is_name=True,
    ),
    _pattern(rf"my{_OFTEN} (?:new )?(?P<of>favou?rite [a-z]+(?: [a-z]+)?) is{_OFTEN}{_WHAT}", "has"),
    _pattern(rf"my{_OFTEN} birthday is{_OFTEN} (?:on )?(?:the )?{_DATE}", "is born on"),
    _pattern(rf"{_I} was born on (?:the )?{_DATE}", "is born on"),
    _pattern(rf"{_I_AM}{_OFTEN} (?P<what>\d{{1,3}})(?: years old)?", "is aged"),
    _pattern(rf"(?:i have|i've|i){_OFTEN} turned (?P<what>1?\d{{1,2}})(?: years old)?{_SEASON}", "is aged"),
    _pattern(
        rf"(?:my|our){_OFTEN} (?:(?:new|current|home) )*address is{_OFTEN} (?P<what>(?:[\w'.-]+ ){{0,5}}\d+[\w-]*"
        r"(?:,? [\w'.-]+){0,8})", "has address",
    ),
    _pattern(
        rf"(?:my{_OFTEN} (?:new )?(?:phone|mobile|cell|telephone)(?: number)? (?:is{_OFTEN}|(?:has )?changed to)|"
        rf"(?:you can )?(?:reach|call|text) me (?:at|on)) (?P<what>[+(]?\d[\d ()/-]+\d)",
        "has phone number",
    ),
    _pattern(rf"my{_OFTEN} (?:new )?e-?mail(?: address)? is{_OFTEN} (?P<what>\S+@\S+)", "has e-mail address"),
    _pattern(
        r"my e-?mail(?: address)?(?: has)? changed(?:(?: to|,? (?:and )?(?:it is|it's|it's now|it is now|now it's)|:))"
        r"(?: now)? (?P<what>\S+@\S+)", "has e-mail address",
    ),
    _pattern(
        rf"(?:{_I}{_OFTEN} drive|my{_OFTEN} (?:new )?car is) (?:an?|the) (?:{_QUALITY} "
        rf"){{0,3}}(?P<what>{_CAPITAL}[\w-]*)(?: {_CAPITAL}[\w-]*)?", "drives", is_name=True,
    ),
    _ended(
        rf"{_I_AM}{_OFTEN} (?:no longer|not) (?:an? )?(?P<what>vegetarian|vegan|pescatarian)(?: any\s*more)?", "eats as"
    ),
    _pattern(
        rf"(?:{_I_AM}|{_I_HAVE}{_OFTEN} (?:become|gone|turned|went|became)){_OFTEN} (?:an? )?(?P<what>vegetarian|"
        rf"vegan|pescatarian)", "eats as",
    ),
    _pattern(
        rf"{_I}{_OFTEN} prefer (?:the |an? )?(?P<what>[\w-]+) (?P<of>seats?|rooms?|tables?|beds?|pillows?|"
        rf"payments?|delivery|mode|theme|units?|format)", "prefers",
    ),
    # What somebody has many of
    _ended(rf"{_I_AM}{_OFTEN} (?:not|no longer){_OFTEN} allergic to{_MAYBE_ANYMORE}", "is allergic to"),
    _ended(rf"{_I_HAVE}{_OFTEN} outgrown my (?P<what>[\w\s-]+?) allergy", "is allergic to"),
    _pattern(rf"{_I_AM}{_OFTEN} allergic to{_WHAT}", "is allergic to"),
    _ended(
        rf"{_I}{_OFTEN} (?:hate|dislike|don't (?:really )?like|do not like|can't stand|cannot stand|no longer "
        rf"(?:like|love|enjoy)|don't enjoy|loathe|detest){_MAYBE_ANYMORE}", "likes",
    ),
    _ended(
        rf"{_I_HAVE}{_OFTEN} (?:stopped (?:liking|loving|enjoying)|grown tired of|gone off|went off){_WHAT}",
        "likes",
    ),
    _ended(rf"{_I_AM}{_OFTEN} (?:not|no longer) (?:a (?:big )?fan of|into|fond of|keen on){_MAYBE_ANYMORE}", "likes"),
    _pattern(
        rf"(?:{_I}{_OFTEN} (?:like|love|enjoy|adore)|{_I_HAVE}{_OFTEN} (?:come|grown|learn(?:ed|t)) to (?:like|love|"
        rf"enjoy)){_WHAT}", "likes",
    ),
    _pattern(rf"{_I_AM}{_OFTEN} (?:a (?:big |huge )?fan of|into|fond of|keen on){_WHAT}", "likes"),
    _ended(
        rf"{_I_HAVE}{_OFTEN} (?:sold|gave away|given away|lost) (?:my|our|the){_WHAT}", "has", is_kind=True,
    ),
    _ended(rf"{_I}{_OFTEN} no longer (?:have|own) (?:an?|my|our){_WHAT}", "has", is_kind=True),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) (?:have|own) (?:an?|my|our){_ANYMORE}", "has", is_kind=True),
    _ended(
        rf"(?:my|our) (?P<what>(?:{_QUALITY} )*{_PET})(?: (?P<name>{_CAPITAL}[\w'-]*))? "
        r"(?:(?:has )?(?:died|passed away|run away|ran away)|is dead)", "has", is_kind=True,
    ),
    _pattern(
        rf"(?:my|our) (?:new )?(?P<what>{_PET})(?: is{_OFTEN} (?:called|named)|'s name is) "
        rf"(?P<name>{_CAPITAL}[\w'-]*)", "has", is_kind=True,
    ),
    _pattern(rf"{_I_HAVE}{_OFTEN} (?:adopted|bought|own|got|have) (?:an?|my|our){_WHAT}", "has", is_kind=True),
    _pattern(rf"{_I}{_OFTEN} (?:have|own) an?{_WHAT}", "has", is_kind=True),
    _ended(rf"{_I}{_OFTEN} no longer (?P<of>{_DO}){_WHAT}", "does"),
    _ended(rf"{_I}{_OFTEN} (?:don't|do not) (?P<of>{_DO}){_MAYBE_ANYMORE}", "does"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:stopped|quit|given up|gave up) (?P<of>{_DOING}){_WHAT}", "does"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|given up|gave up) (?P<what>coffee|tea|alcohol|beer|wine|soda)", "does drink"),
    _ended(rf"{_I_HAVE}{_OFTEN} (?:quit|given up|gave up) (?P<what>meat|fish|sugar|dairy|chocolate)", "does eat"),
    _pattern(rf"{_I}{_OFTEN} (?P<of>{_DO}){_MUCH} (?P<what>[^,;:!?()\n]+?){_HOW_OFTEN}", "does"),
    _pattern(rf"{_I_HAVE}{_OFTEN} (?:started|begun|began) (?P<of>{_DOING}){_WHAT}", "does"),
)  # fmt: skip

ENGLISH: Final = Language(
    lead=re.compile(_LEAD, re.IGNORECASE),
    tail=re.compile(_TAIL, re.IGNORECASE),
    detail=re.compile(_DETAIL, re.IGNORECASE),
    undone=re.compile(
        r"\b(?:back|return(?:ed)?|left|not|only|but|wrong|lied|lie|wish|think|guess)\b|"
        r"n't(?! (?:take|stand|bear|afford) it)", re.IGNORECASE
    ),
    patterns=_ENGLISH,
    own=re.compile(r"\b(?:i|im|ive|weve|me|my|mine|myself|we|us|our|ours)\b", re.IGNORECASE),
    empty=re.compile(
        r"(?:(?:and|but|so|ok|okay|well|oh|yes|no|ah|hm+|hi|hey|hello)\b[,!.\s]*)*(?:"
        r"(?:thank|thanks|please|sorry|sure|great|good|nice|cool|perfect|welcome|cheers|bye|goodbye|see you|"
        r"let me|let's|"
        r"tell me|show me|give me|help me|remind me|can|could|would|will|do|does|what|who|where|when|why|how)\b"
        r"|(?:i|we)(?: (?:really|just|also|still|only|do|don't|did|didn't|do not|did not|can|can't|could|couldn't|"
        r"would|will|am|was))* (?:see|understand|agree|guess|wonder|mean|know|think|believe|suppose|hope|apologi[sz]e|"
        r"appreciate|remember|forgot|said|say|ask|asked|understood|figured|wondering|hoping|looking forward|"
        r"sorry|afraid|"
        r"not sure|sure|glad|happy to (?:hear|help))\b"
        r"|(?:i|we)(?:'d| would|'ll| will)\b"
        r"|i'm (?:sorry|not sure|sure|glad|afraid|wondering|looking for(?:ward)?|just (?:asking|curious)|curious)\b"
        r"|(?:i|we) (?:want|need|like) (?:you|to (?:know|ask|see|say|talk|thank|hear)|help|a (?:hand|moment|"
        r"question))\b"
        r"|i have (?:a|another|one more|some) (?:quick )?questions?\b)",
        re.IGNORECASE,
    ),
    unsure=re.compile(
        r"\b(?:used to|when i was|as a (?:child|kid|student|teenager|boy|girl)|years? ago|back then|if|unless|"
        r"would|might|could|should|want to|wants to|wanted to|hope|hopes|hoping|plan|plans|planning|dream|"
        r"dreamt|dreamed|"
        r"wish|almost|nearly|until|till|once|previously|formerly|earlier|next (?:week|month|year|spring|"
        r"summer|autumn|fall|"
        r"winter|\w+day)|tomorrow|going to|gonna|temporarily|for (?:a|the|two|three|some) (?:few )?(?:days?|weeks?|"
        r"months?|weekend|holidays?|vacation|summer|winter)|on (?:holiday|vacation)|maybe|perhaps|probably|"
        r"imagine|pretend|"
        r"suppose|joking|kidding|thinking of|thinking about|consider(?:ing)?|never)\b|"
        r"(?-i:\bwill\b)|'ll\b|'d\b|\bor\b",
        re.IGNORECASE,
    ),
    passing=re.compile(
        r"\bhave (?:an?|another|some|one) (?:[a-z]+ ){0,2}(?:questions?|requests?|problems?|issues?|ideas?|meetings?|"
        r"moment|minute|look|feeling|doubts?|favou?r)\b",
        re.IGNORECASE,
    ),
    parts=re.compile(r"\s*(?:,|;)\s*(?:(?:and|but|so) )?(?=(?:i|i'?m|i'?ve|my|we|we'?ve|our|now)\b)"
                     r"| (?:and|but) (?=(?:i|i'?m|i'?ve|my|we|we'?ve|our|now)\b)"
                     r"|\s*, so (?!(?:far|to (?:speak|say)|they say|it seems|much)\b)", re.IGNORECASE),
    aside=re.compile(r"\s*[,;] (?:and )?(?!(?:it|it's|it is)(?: now)? \S+@)(?:it|it's|everything|everybody|everyone|"
                     r"they|they're|there's)\b(?! (?:say|says|seems?|looks?|appears?|claim|think|depends)\b)",
                     re.IGNORECASE),
    one_of_a_kind=frozenset({
        "mother", "mom", "mum", "father", "dad", "wife", "husband", "partner", "girlfriend", "boyfriend", "boss",
        "manager",
    }),
)  # fmt: skip
