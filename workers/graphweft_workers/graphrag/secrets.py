"""Keeps secrets out of what a model reads: see ``redact``.

It errs on the side of silence. A secret is looked for in several readings of a text: as it stands, without what is
invisible, with look-alike letters and escapes resolved, and with broken lines put together again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal

from graphweft_rules.terms import STOP_WORDS
from graphweft_workers.graphrag.secret_patterns import (
    APART,
    ASSIGNED,
    AUTHORIZATION,
    BEARER,
    CARD,
    CERTAIN,
    EDGES,
    KEY_PARTS,
    LEAD,
    LINE_START,
    LIST,
    LONG,
    NAMED,
    NEAR,
    NO_VALUES,
    OPENING,
    PHRASE_WORDS,
    PIN,
    PLAIN,
    PRIVATE_KEY,
    PROSE,
    QUOTES,
    RANDOM,
    REFERENCE,
    SAID,
    SEED,
    SEED_PHRASE,
    SEED_WORDS,
    SHELL,
    SIGNS,
    TOKEN,
    WEAK,
    WITH_VALUE,
    WORD,
    WORD_LIKE,
)

REDACTED: Final = "[REDACTED]"
_LONGEST: Final = 4_000
"""Characters of a text that are looked at; nothing that may be in a context is longer."""
_MOST_OF_ONE: Final = 6
"""Letters that one sign may stand for; of some, NFKD makes eighteen."""

_LOOK_ALIKE: Final = str.maketrans(
    "аАеЕоОрРсСхХуУкКмМтТвВнНіІїЇѕЅјЈԁԛԝһҺΑαΒΕΖΗΙΚκΜΝΟοΡρΤτΥυΧχνιıɑɡℓ\u2044\u2215\u2236\ua789\u02d0\u02f8\u201a\u201e\u2212",
    "aAeEoOpPcCxXyYkKmMtTbBhHiIiIsSjJdqwhHAaBEZHIKkMNOoPpTtYuXxviiagl//::::'\"-",
)
"""Letters and signs that look like those of ASCII; dashes and quotation marks come beside."""
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Blanks by their looks only; what Unicode calls a format character comes beside."""
_ESCAPE: Final = re.compile(
    r"\\u\{?([0-9A-Fa-f]{4,6})\}?|\\x([0-9A-Fa-f]{2})|%([2-7][0-9A-Fa-f])|&#[xX]([0-9A-Fa-f]{1,6});|&#([0-9]{1,7});"
    r"|&(quot|apos|colon|equals|commat|sol|lowbar|hyphen|dash);"
)
_ENTITIES: Final = {
    "quot": '"', "apos": "'", "colon": ":", "equals": "=", "commat": "@", "sol": "/", "lowbar": "_", "hyphen": "-",
    "dash": "-",
}  # fmt: skip
_NOT_PLAIN: Final = re.compile(r"[^ -~\s]|[^\x00-\x7f]")
_BREAK: Final = re.compile(
    r"(?<![ \t])[ \t]*\\?(?:\r?\n|\r|\\r\\n|\\n)[ \t]*(?:(?:#+|//+|\*+|>+|\|+|;+|--+(?=[ \t])|<!--|%+)[ \t]*)*[\"'`]?"
    r"|[\"'`][ \t]*(?:[+.&][ \t]*)?(?:\\?(?:\r?\n|\r)[ \t]*(?:[+.&][ \t]*)?)?[\"'`](?=[A-Za-z0-9_./+-])"
)
"""Where one word may have been broken in two: at the end of a line, also of a comment, or between quoted parts."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text as it may be read, and of each character where it stands in the text itself."""

    text: str
    starts: list[int] | range
    ends: list[int] | range

    def places(self, found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for start, end in found:
            if start < end:
                yield self.starts[start], self.ends[end - 1]

    def without(self, pattern: re.Pattern[str]) -> _Reading:
        chars: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        for match in [*pattern.finditer(self.text), None]:
            until = match.start() if match else len(self.text)
            chars.append(self.text[at:until])
            starts += self.starts[at:until]
            ends += self.ends[at:until]
            at = match.end() if match else until
        return _Reading("".join(chars), starts, ends)


def redact(text: str) -> str:
    """Return the text with ``[REDACTED]`` in the place of each secret. Never raises; twice is the same as once.

    What is behind the first 4,000 characters is not looked at, and does not come back.

    A secret is an API key, a bearer token, a JWT, a private key (without its end, all that follows), user and password
    of a URL, or what is assigned to a password, a token and the like, by ``=``, ``:``, a tag or an option.
    """
    text = _bounded(text)
    return _masked(text, _secrets(text))


def redact_value(label: str, text: str) -> str:
    """Return the text as ``redact`` does, where ``label`` stands before it as the name of what it is."""
    head, text = f"{_bounded(label)}: ", _bounded(text)
    found = [(start - len(head), end - len(head)) for start, end in _secrets(head + text) if end > len(head)]
    return _masked(text, [(max(0, start), end) for start, end in found] + _secrets(text))


def redact_beside(label: str, text: str) -> str:
    """Return the text without what looks like a secret, where ``label`` names one and stands elsewhere on the line."""
    label, text = _bounded(label), _bounded(text)
    named = _named(label) if _may_name_one(label) else None
    if named is None:
        return text
    looks = _looks_random if named == "certain" else _is_strange
    return _masked(text, [word.span() for word in APART.finditer(text) if looks(word[0].strip(QUOTES))])


@lru_cache(maxsize=4_096)
def _may_name_one(label: str) -> bool:
    small = label.lower()
    return not label.isascii() or any(part in small for part in KEY_PARTS) or not label.isprintable()


@lru_cache(maxsize=4_096)
def _named(label: str) -> Literal["certain", "likely"] | None:
    """Tell whether a label ends with what names a secret."""
    last = None
    for match in NAMED.finditer(label):
        last = match
    if last is None or label[last.end() :].strip(EDGES + " "):
        return None
    return "certain" if re.match(CERTAIN, last[0], re.IGNORECASE) else "likely"


def is_value(label: str, text: str) -> bool:
    """Tell whether a text looks like the secret that ``label`` names, where the two may be things of their own."""
    label, text = _bounded(label), _bounded(text).strip()
    return _may_name_one(label) and _looks_random(text) and redact_value(label, text) != redact(text)


def is_invisible(char: str) -> bool:
    """Tell whether a character shows nothing, and is no blank either."""
    return char in _INVISIBLE or unicodedata.category(char) in {"Cf", "Cs", "Co", "Cn"}


def _masked(text: str, found: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    at = 0
    until = -1
    for start, end in sorted(found):
        if start > until or until < 0:
            parts += [text[at:start], REDACTED]
        until = at = max(until, end)
    return "".join(parts) + text[at:]


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - len(REDACTED)] + REDACTED


def _secrets(text: str) -> list[tuple[int, int]]:
    if not _may_hold_one(text):
        return []
    found: list[tuple[int, int]] = []
    for reading in _readings(text):
        found += reading.places(_tokens(reading.text))
        found += reading.places(_assigned(reading.text))
        if _BREAK.search(reading.text):
            whole = reading.without(_BREAK)
            found += whole.places(_mended(reading, whole))
    return found


def _may_hold_one(text: str) -> bool:
    """Tell whether a text has anything that a secret has; most have not, and end here, in a tenth of the time."""
    if not (text.isascii() and text.isprintable()) or LONG.search(text):
        return True
    small = text.lower()
    return any(sign in small for sign in (*SIGNS, *KEY_PARTS))


def _readings(text: str) -> Iterator[_Reading]:
    yield _Reading(text, range(len(text)), range(1, len(text) + 1))
    has_escapes = _ESCAPE.search(text) is not None
    if _NOT_PLAIN.search(text):
        yield _resolved(text, escapes=False, between="")
        yield _resolved(text, escapes=False, between=" ")
    if has_escapes:
        yield _resolved(text, escapes=True, between="")


def _resolved(text: str, *, escapes: bool, between: str) -> _Reading:
    """Return the text with plain letters; ``between`` stands for what is invisible."""
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []

    def add(shown: str, start: int, end: int) -> None:
        for char in shown:
            chars.append(char)
            starts.append(start)
            ends.append(end)

    at = 0
    while at < len(text):
        match = _ESCAPE.match(text, at) if escapes and text[at] in "\\%&" else None
        if match:
            add(_plain(_unescaped(match), between), at, match.end())
            at = match.end()
        else:
            add(_plain(text[at], between), at, at + 1)
            at += 1
    return _Reading("".join(chars), starts, ends)


def _unescaped(match: re.Match[str]) -> str:
    *numbers, name = match.groups()
    if name:
        return _ENTITIES[name]
    number = next(int(digits, 10 if place == 4 else 16) for place, digits in enumerate(numbers) if digits)
    return chr(number) if number < 0x110000 else ""


@lru_cache(maxsize=4_096)
def _plain(char: str, between: str) -> str:
    if char.isascii():
        return char if char.isprintable() or char.isspace() else between
    if "\U000e0020" <= char <= "\U000e007e":  # tags: ASCII that nobody sees
        return chr(ord(char) - 0xE0000)
    if is_invisible(char):
        return between
    if char in "\u2028\u2029\u0085":
        return "\n"
    if char.isspace():
        return " "
    category = unicodedata.category(char)
    if category in {"Pd", "Pi", "Pf"}:
        return "-" if category == "Pd" else "'" if char in "\u2018\u2019\u201b" else '"'
    parts = unicodedata.normalize("NFKD", char.translate(_LOOK_ALIKE))
    kept = (part for part in (parts if len(parts) <= _MOST_OF_ONE else char) if not _is_mark(part))
    return "".join(kept).translate(_LOOK_ALIKE)


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in {"Mn", "Me"}


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    yield from _by_looks(text)
    for pattern in (TOKEN, PRIVATE_KEY):
        for match in pattern.finditer(text):
            yield match.span()
    for pattern in (*WITH_VALUE, BEARER, AUTHORIZATION):
        for match in pattern.finditer(text):
            if not match["value"].startswith(REDACTED):
                yield match.span("value")


def _by_looks(text: str) -> Iterator[tuple[int, int]]:
    """Yield what is a key by its looks: letters of both cases and digits without any order; and seed phrases."""
    for match in RANDOM.finditer(text):
        kinds = ["0" if char.isdigit() else "A" if char.isupper() else "a" for char in match[0] if char.isalnum()]
        changes = sum(one != other for one, other in pairwise(kinds))
        at_digits = sum((one == "0") != (other == "0") for one, other in pairwise(kinds))
        often = changes / (len(kinds) - 1)
        if len({*kinds}) == 3 and often >= 0.35 and (at_digits >= 4 or often >= 0.55):
            yield match.span()
    for match in CARD.finditer(text):
        if _is_card([int(digit) for digit in match[0] if digit.isdigit()]):
            yield match.span()
    if SEED.search(text):
        for match in SEED_PHRASE.finditer(text):
            words = match[0].replace(",", " ").split()
            if sum(word in STOP_WORDS for word in words) * 6 <= len(words):
                yield match.span()


def _is_card(digits: list[int]) -> bool:
    """Tell whether the last digit is the check digit that numbers of cards have (Luhn)."""
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _told(text: str) -> Iterator[tuple[int, int]]:
    """Yield what a setting or a sentence says to be a secret."""
    for match in SHELL.finditer(text):
        word = match["value"].strip(EDGES)
        if not (_is_reference(match["value"]) or word.casefold() in NO_VALUES | PROSE):
            yield match.span("value")
    for match in SAID.finditer(text):
        name = next(name for name in ("value", "before", "beside") if match[name])
        if not _is_reference(match[name]) and (match["sure"] or _looks_random(match[name].strip(QUOTES))):
            yield match.span(name)
    for match in PIN.finditer(text):
        yield match.span("value")


def _near(text: str) -> Iterator[tuple[int, int]]:
    """Yield what looks like a secret and stands behind a word that names one, on the same line."""
    for match in WEAK.finditer(text):
        word, name = match["value"].strip(EDGES), match[0][:3].lower()
        sure = re.fullmatch(r"[0-9]{4,8}", word) if name == "pin" else name[:2] in ("pw", "pa") and _looks_random(word)
        if not _is_reference(word) and (sure or _is_strange(word) or _is_strange(word.rpartition("/")[2])):
            yield match.span("value")
    for match in NAMED.finditer(text):
        lead = LIST.match(text, match.end())
        begin = lead.end() if lead else match.end()
        line = text[begin : begin + NEAR].partition("\n")[0]
        for word in APART.finditer(line):
            start = begin + word.start()
            whole = APART.match(text, start)
            if whole and _is_strange(whole[0].strip(QUOTES)):
                yield whole.span()


def _is_strange(word: str) -> bool:
    """Tell whether a word with digits in it is none of those that are in every text."""
    if len(word) < 6 or "://" in word or _is_reference(word):
        return False
    has_both = any(char.isalpha() for char in word) and any(char.isdigit() for char in word)
    return has_both and word.isascii() and WORD_LIKE.fullmatch(word) is None


def _mended(reading: _Reading, whole: _Reading) -> Iterator[tuple[int, int]]:
    """Yield what is a key in a text without its breaks, and no more of what is behind a break than belongs to it."""
    ends = {reading.ends[end - 1] for match in TOKEN.finditer(reading.text) for end in [match.end()]}
    for match in TOKEN.finditer(whole.text):
        start, end = match.span()
        for at in range(start + 1, end):
            # A key that is whole at the end of a line does not go on with the word that begins the next one.
            if whole.ends[at - 1] in ends and whole.starts[at] > whole.ends[at - 1]:
                if PLAIN.fullmatch(whole.text[at:end]):
                    end = at
                break
        yield start, end
    for pattern in WITH_VALUE:
        for match in pattern.finditer(whole.text):
            if not match["value"].startswith(REDACTED):
                yield match.span("value")


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    small = text.lower()
    if not any(part in small for part in KEY_PARTS):  # most texts end here
        return
    for match in ASSIGNED.finditer(text):
        span = _value(text, match)
        if span is not None:
            yield span
    yield from _near(text)
    yield from _told(text)


def _value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Return where the secret is that is assigned here, if it is one."""
    certain, sign = match["certain"] is not None, match["sign"]
    is_option = bool(re.search(r"(?<![\w-])--?[\w-]*\Z", text[max(0, match.start() - 40) : match.start()]))
    if match["blank"] and not is_option:
        return None
    if match["tag"] and not re.search(r"<[\w:.-]*\Z", text[max(0, match.start() - 40) : match.start()]):
        return None
    at = match.end()
    lead = LEAD.match(text, at)
    at = lead.end() if lead else at
    opening = OPENING.match(text, at)
    if opening:
        start = opening.end()
        end = _closing(text, start, opening[1])
        value = text[start:end].strip()
        sentence = not certain and len(value.split()) > 3 and not _looks_random(max(value.split(), key=len))
        spared = not value or _is_reference(value) or sentence or (match["is"] and not _looks_random(value))
        return None if spared else (start, end)
    run = re.compile(r"[^\s<]+" if match["tag"] else r"\S+").match(text, at)
    if run is None or _is_reference(run[0]):
        return None
    word = run[0].strip(EDGES)
    if word.casefold() in NO_VALUES or not word:
        return None
    if match["is"]:
        return run.span() if _looks_random(word) else None
    rest = text[run.end() :].partition("\n")[0]
    is_prose = WORD.fullmatch(word) is not None and bool(rest.strip(EDGES + " "))
    if is_prose and word.casefold() in PROSE:
        return None
    if certain:
        return run.start(), run.end() + _phrase(text, match, rest)
    is_plain = WORD.fullmatch(word) is not None and len(word) < 16 and word[1:] == word[1:].lower()
    if is_plain and sign != "=" and not is_option and (is_prose or len(word) < 6 or "\n" in text[match.end() : at]):
        return None
    is_number = re.fullmatch(r"[0-9.,%]+[A-Za-z]{0,3}", word) is not None and len(word) < 6
    return None if is_number else run.span()


def _phrase(text: str, match: re.Match[str], rest: str) -> int:
    """Return how far a password goes on behind its first word: to the line's end, if that can be a phrase of words."""
    words = rest.split()
    is_seed = re.match(r"seed|recovery|mnemonic|pass[ _-]?phrase", match["certain"], re.IGNORECASE) is not None
    most = SEED_WORDS if is_seed else PHRASE_WORDS
    starts = LINE_START.search(text[max(0, match.start() - 60) : match.start()]) is not None
    plain = all(re.fullmatch(r"[a-z]+", word) for word in words)
    return len(rest.rstrip()) if words and len(words) < most and plain and (starts or is_seed) else 0


def _closing(text: str, start: int, quote: str) -> int:
    at = start
    while (at := text.find(quote, at)) >= 0:
        slashes = at - len(text[start:at].rstrip("\\")) - start
        if slashes % 2 == 0 or text[start - len(quote) - 1 : start - len(quote)] == "\\":
            return at - slashes if slashes % 2 else at
        at += 1
    return len(text)


def _is_reference(value: str) -> bool:
    return value.strip().casefold() in NO_VALUES or REFERENCE.match(value.strip()) is not None


def _looks_random(value: str) -> bool:
    """Tell whether a value is no word: letters with digits or signs in it."""
    if len(value) < 6 or " " in value:
        return False
    letters = any(char.isalpha() for char in value)
    return letters and any(char.isdigit() or char in "!@#$%^&*+=~|" for char in value)
