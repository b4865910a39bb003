"""Terms: the words of a text in the form that fulltext search compares.

Graph servers tokenize in different ways, so texts are stored, and questions asked, with terms from here. A term has
letters, digits and the signs of letters only, so no query language reads it as an operator.

Words are stemmed by Snowball (https://snowballstem.org): each as an English word, or as it is if it has other letters,
and as a word of the language of its text (``languages``). So a question finds a word by any term that both have, and
all that older versions stored. A word with accents, vowel points, digits of another script or letters that people leave
out (``_LETTERS``) has terms with plain ones, too; so have the parts around an apostrophe ("l'homme") and a joiner.

Text of scripts without blanks between words (Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer) is cut into
overlapping pairs of characters, and into single ones, which only a question of one character asks for. An emoji is a
word: its term has its number.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache, lru_cache
from itertools import chain, islice
from typing import Any, Final

import Stemmer

from graphweft_rules.normal_form import normalized
from graphweft_workers.text.languages import (
    ENGLISH_STOP_WORDS,
    READ,
    is_function_word,
    language_of,
    latin_language,
    stemmer_of,
)

_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u0816-\u082d"
    "\u0859-\u085b\u0897-\u089f\u08ca-\u08e1\u08e3-\u0963\u0970-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
    "\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u0f8d-\u0fbc\u102b-\u103e\u1056-\u1059\u105e-\u109d\u135d-\u135f"
    "\u1712-\u1734\u1752\u1753\u1772\u1773\u17b4-\u17d3\u17dd\u1885\u1886\u18a9\u1920-\u193b\u1a17-\u1a1b\u1a55-\u1a7f"
    "\u1ab0-\u1b04\u1b34-\u1b44\u1b6b-\u1b73\u1b80-\u1b82\u1ba1-\u1bad\u1be6-\u1bf3\u1c24-\u1c37\u1cd0-\u1cf9"
    "\u1dc0-\u1dff\u302a-\u302f\u3099\u309a\ua66f\ua674-\ua67d\ua69e\ua69f\ua802\ua806\ua80b\ua823-\ua827\ua880\ua881"
    "\ua8b4-\ua8c5\ua8e0-\ua8f1\ua926-\ua92d\ua947-\ua953\ua980-\ua983\ua9b3-\ua9c0\uaa29-\uaa36\uaa43\uaa4c\uaa4d"
    "\uaa7b-\uaa7d\uaab0-\uaac1\uaaeb-\uaaef\uaaf5\uaaf6\uabe3-\uabea\uabec\uabed"
    "\U00011000-\U00011002\U00011038-\U00011046\U00011100-\U00011102\U00011127-\U00011134\U0001e944-\U0001e94a"
)
"""Signs above, below and beside letters, which belong to a word, and the letters of India between them."""
_JOINERS: Final = "\u00ad\u200c\u200d"
"""Between the parts of a word: a soft hyphen, and what says whether letters touch."""
_EMOJI: Final = (
    "[\U0001f1e6-\U0001f1ff]{2}|[\u231a-\u23ff\u2600-\u27bf\u2b50\u2b55\U0001f300-\U0001f3fa\U0001f400-\U0001faff]"
)
"""A flag, or a sign without its colour of skin; a run of the same one is one word."""
_WORD: Final = re.compile(
    rf"[^\W_][\w{_MARKS}{_JOINERS}]*(?:['\u2019][^\W_][\w{_MARKS}{_JOINERS}]*)*|(?P<sign>{_EMOJI})(?P=sign)*"
)
"""A word of a text in which blanks stand for underscores."""
_IS_EMOJI: Final = re.compile(_EMOJI)
_JOINER: Final = re.compile(f"[{_JOINERS}]+")
_APOSTROPHE: Final = re.compile(r"['\u2019]")
_TYPOGRAPHIC: Final = re.compile(r"[\u2019\u02bc]")
_UNSPACED: Final = re.compile(
    r"[\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3\u3005-\u3007\u3040-\u312f\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7af\U00020000-\U0003ffff]+"
)
_INDIC: Final = re.compile(r"[\u0900-\u0dff]")
_LONGEST: Final = 64
"""Limit of characters in a term; the rest is cut."""
_MOST_QUERY_TERMS: Final = 64
MOST_TERMS: Final = 20_000
"""Limit of terms of a text."""
MOST_TERMS_OF_EVENT: Final = 100_000
"""Limit of terms of all texts of an event; a term of a repeated word takes 1 us."""
MOST_WORDS_OF_EVENT: Final = 20_000
"""Limit of different words of an event; the terms of one take about 2 us."""
_LONGEST_QUESTION: Final = 20_000
"""Limit of characters in a question; the end of a longer one counts."""
_SHORT: Final = 128
"""Limit of characters in a name or fact whose terms are cached."""
_SHORT_WORD: Final = 24
"""The same for a word. With the number of words in the cache, it bounds what strangers' texts fill: 100 MB."""
_SHORT_RUN: Final = 8
"""The same for a word with text without blanks, which has two terms for each character, and seldom repeats."""
_LONGEST_WORD: Final = 256
"""Limit of characters of a word that are read; of a word with text without blanks, parts of this length are."""
_PIECE: Final = re.compile(rf"\S{{1,256}}[{_MARKS}{_JOINERS}\u1160-\u11ff\uff9e\uff9f]{{,32}}")
"""A piece ends before a character that no normalization joins to the one before it."""
_LAST: Final = re.compile(rf"[^\W_][{_MARKS}]{{,8}}\Z")
"""The last character of a piece, with its signs."""
_SNOWBALL: Any = Stemmer  # it has no types
_SHORTEST_PART: Final = 2
"""Of a part of a word that has terms of its own, one character less."""
_ELIDED: Final = frozenset({
    "l", "d", "j", "m", "n", "t", "s", "c", "qu", "lorsqu", "puisqu", "jusqu", "quoiqu", "un", "all", "dell", "nell",
    "sull", "dall", "coll", "quest", "quell", "bell", "sant", "senz",
})  # fmt: skip
"""What is before the apostrophe in French, Italian and Catalan."""
_LETTERS: Final = str.maketrans({
    "\u0131": "i", "\u0111": "d", "\u00f8": "o", "\u0142": "l", "\u00e6": "ae", "\u0153": "oe", "\u00f0": "d",
    "\u00fe": "th", "\u0127": "h", "\u014b": "n", "\u0649": "\u064a", "\u0629": "\u0647", "\u06a9": "\u0643",
    "\u06cc": "\u064a", "\u0671": "\u0627", "\u0640": None,
})  # fmt: skip
"""Letters that Unicode does not take apart, and what people write in their place."""
_UMLAUTS: Final = str.maketrans({"\u00e4": "ae", "\u00f6": "oe", "\u00fc": "ue"})
_HEBREW_PREFIXES: Final = frozenset("\u05d5\u05d4\u05d1\u05dc\u05de\u05e9\u05db")
"""Letters that are words of their own: and, the, in, to, from, that, as."""
_MOST_PREFIXES: Final = 4
"""How many of them a word begins with: "and as from the" is one of the longest."""

STOP_WORDS: Final = ENGLISH_STOP_WORDS
"""English words without a topic. Texts keep them; questions drop them, and those of their language."""


_ENDS: Final = frozenset({"s", "m", "re", "ve", "ll", "d", "t"})
"""What follows the apostrophe of a contraction."""
_CUT_SHORT: Final = frozenset({"ca", "wo", "sha", "ai"})
"""What "can't", "won't", "shan't" and "ain't" leave of their word."""
_WITHOUT_APOSTROPHE: Final = frozenset({
    "arent", "couldnt", "didnt", "doesnt", "dont", "hadnt", "hasnt", "havent", "hows", "im", "isnt", "ive", "shouldnt",
    "thats", "theres", "theyre", "theyve", "wasnt", "werent", "whats", "whens", "wheres", "whos", "whys", "wouldnt",
    "youre", "youve",
})  # fmt: skip
"""Contractions as they are often written, but for those that are words of their own: "ill", "well", "shell", "wed"."""


class TooManyWords(ValueError):
    """The names or facts of an event have more different words than an event may have."""


class EventTerms:
    """The terms of the texts of one event, within the limits of an event.

    They depend on the texts and their order alone, so a replay finds the same terms.
    """

    def __init__(self, *, most_words: int = MOST_WORDS_OF_EVENT, most_terms: int = MOST_TERMS_OF_EVENT) -> None:
        self._most_words = most_words
        self._left = most_terms
        self._words: set[str] = set()

    def first(self, text: str) -> tuple[list[str], int]:
        """Return the first terms of a text, with repetitions, and how many characters behind them have none.

        The terms end at 20,000, or where the event reaches a limit.
        """
        found: list[str] = []
        most = min(MOST_TERMS, self._left)
        known, most_words = self._words, self._most_words
        unsearched = 0
        language, words = _in_language(text)
        for at, word in words:
            if word not in known and len(known) >= most_words:
                unsearched = len(text) - at
                break
            known.add(word)
            of_word = _terms_of(word, True, language)
            if len(found) + len(of_word) > most:
                unsearched = len(text) - at
                break
            found += of_word
        self._left -= len(found)
        return found, unsearched

    def whole(self, text: str) -> list[str]:
        """Return all terms of a name or fact, up to 20,000: nodes of several events have them, so none may be cut.

        Raises ``TooManyWords`` if the event has too many different words, or too many terms.
        """
        found, words = _known(text) if len(text) <= _SHORT else _read(text)
        self._words |= words
        self._left -= len(found)
        if len(self._words) > self._most_words or self._left < 0:
            raise TooManyWords
        return found


def terms(text: str) -> list[str]:
    """Return the first 20,000 terms of a text, in order, with repetitions. Never raises."""
    return EventTerms(most_words=MOST_TERMS).first(text)[0]


def query_terms(text: str, *, filter_stop_words: bool = True) -> list[str]:
    """Return the distinct terms of a question: the last 64, because a question may be a whole conversation.

    Stop words are dropped, unless the question has no other words.
    """
    wanted, others = _asked(text, filter_stop_words=filter_stop_words)
    return wanted or others


def topic_terms(text: str) -> list[str]:
    """Return the terms of a question as ``query_terms`` does, but none if it has stop words only."""
    return _asked(text, filter_stop_words=True)[0]


def _asked(text: str, *, filter_stop_words: bool) -> tuple[list[str], list[str]]:
    """Return the distinct terms of a question, and of its stop words."""
    wanted: dict[str, None] = {}  # last first
    others: dict[str, None] = {}
    pieces = text[-_LONGEST_QUESTION:].split()
    last: list[list[str]] = []
    while pieces and sum(map(len, last)) < READ:
        last.append(_words_of(pieces.pop()))
    language, is_sure = latin_language(map(_start, [word for words in reversed(last) for word in words][-READ:]))
    for words in chain(last, map(_words_of, reversed(pieces))):
        for word in reversed(words):
            kept = others if filter_stop_words and _is_stopped(word, language if is_sure else "") else wanted
            if len(kept) < _MOST_QUERY_TERMS:
                kept.update(dict.fromkeys(reversed(_terms_of(word, False, language))))
        if len(wanted) >= _MOST_QUERY_TERMS:
            break
    first, second = (list(each)[:_MOST_QUERY_TERMS][::-1] for each in (wanted, others))
    return first, second


def placed_terms(text: str) -> Iterator[tuple[int, str]]:
    """Yield each term of a text with the place of its piece: of the characters around it up to the blanks."""
    language, words = _in_language(text)
    for at, word in words:
        for term in _terms_of(word, True, language):
            yield at, term


def name_key(name: str) -> str:
    """Return a name in the form that is equal for all its spellings: NFKC, case-folded, single blanks."""
    return " ".join(normalized("NFKC", name).casefold().split())


def _words(pieces: Iterable[re.Match[str]]) -> Iterator[tuple[int, str]]:
    """Yield the words of short pieces of text, each with the start of its piece.

    Where text without blanks goes on in the next piece, the last character is in both: pairs of characters are terms.
    """
    end, last = 0, ""
    for piece in pieces:
        read = normalized("NFKC", piece[0]).casefold().replace("_", " ")
        start = piece.start()
        if last and start == end and _UNSPACED.match(read):
            read = last + read
        for match in _WORD.finditer(read):
            word = match[0]
            if len(word) <= _LONGEST_WORD:
                yield start, word
            elif _UNSPACED.search(word) is None:
                yield start, word[:_LONGEST_WORD]
            else:
                for at in range(0, len(word) - 1, _LONGEST_WORD - 1):
                    yield start, word[at : at + _LONGEST_WORD]
        last = ""
        if not read.isascii() and (found := _LAST.search(read[-_SHORT_RUN:])) and _UNSPACED.match(found[0]):
            end, last = piece.end(), found[0]


def _in_language(text: str) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the language of a text in Latin letters, by its first words; and its words, as ``_words`` does."""
    words = _words(_PIECE.finditer(text))
    first = list(islice(words, READ))
    return latin_language(_start(word) for _, word in first)[0], chain(first, words)


def _words_of(text: str) -> list[str]:
    """Return the words of a text without blanks."""
    return [word for _, word in _words(_PIECE.finditer(text))]


def _start(word: str) -> str:
    """Return a word up to its apostrophe."""
    return word.partition("'")[0].partition("\u2019")[0]


def _read(text: str) -> tuple[list[str], AbstractSet[str]]:
    """Return the terms of a text, and its different words."""
    one = EventTerms(most_words=MOST_TERMS)
    return one.first(text)[0], one._words  # pyright: ignore[reportPrivateUsage]


@lru_cache(maxsize=4_096)
def _known(text: str) -> tuple[list[str], frozenset[str]]:
    """Cached, because names and short facts repeat."""
    found, words = _read(text)
    return found, frozenset(words)


def _is_stop_word(word: str) -> bool:
    """Return whether a word has no topic: a stop word, or a contraction of one such as "what's" or "wouldn't've"."""
    start, *ends = _TYPOGRAPHIC.sub("'", word).split("'")
    if not ends:
        return word in STOP_WORDS or word in _WITHOUT_APOSTROPHE
    if not _ENDS.issuperset(ends):
        return False
    if ends[0] == "t":
        start = start.removesuffix("n") if start not in STOP_WORDS else start
        return start in STOP_WORDS or start in _CUT_SHORT
    return start in STOP_WORDS


def _is_stopped(word: str, latin: str) -> bool:
    """Return whether a word has no topic in its language: of the Latin letters that one, or English."""
    language = language_of(word, latin)
    if not language:
        return _is_stop_word(word)
    return all(is_function_word(part, language) for part in _APOSTROPHE.split(word))


def scope_term(name: str, value: str) -> str:
    """Return the term for a value of a scope such as ``user_id``: letters and digits, whatever the value is.

    Stored beside the terms of a text, it lets a fulltext index filter by scope.
    """
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=10, person=name.encode()[:16])
    return name.partition("_")[0] + digest.hexdigest()


def _terms_of(word: str, in_text: bool, latin: str = "") -> tuple[str, ...]:
    """Return the terms of one word of a text or of a question.

    ``latin`` is the language of the text, if its words are in Latin letters.
    """
    if len(word) <= _SHORT_RUN or (len(word) <= _SHORT_WORD and _UNSPACED.search(word) is None):
        return _terms_of_short(word, in_text, latin)
    return _made_terms(word, in_text, latin)


@lru_cache(maxsize=65_536)
def _terms_of_short(word: str, in_text: bool, latin: str) -> tuple[str, ...]:
    """Cached, because most words repeat."""
    return _made_terms(word, in_text, latin)


def _made_terms(word: str, in_text: bool, latin: str) -> tuple[str, ...]:
    if word.isascii() and not latin and "'" not in word:
        return _common_terms(word, in_text)
    if (sign := _IS_EMOJI.match(word)) is not None:
        return ("emoji" + "".join(f"{ord(char):x}" for char in sign[0]),)
    plain = _JOINER.sub("", word)
    found = dict.fromkeys(_common_terms(plain, in_text))
    before, _, behind = _TYPOGRAPHIC.sub("'", plain).partition("'")
    parts = _JOINER.split(word) if plain != word else []
    if before in _ELIDED and len(behind) > _SHORTEST_PART:
        parts.append(behind)
    elif behind and latin and len(before) > _SHORTEST_PART:  # "İstanbul'da"
        parts.append(before)
    for part in parts:
        if part:
            found.update(dict.fromkeys(_terms_of(part, in_text, latin)))
    if not behind:
        found.update(dict.fromkeys(_written_otherwise(plain, in_text)))
        found.update(dict.fromkeys(_stems(plain, latin)))
    return tuple(found)


def _common_terms(word: str, in_text: bool) -> tuple[str, ...]:
    """Return the terms of a word, whatever its language.

    A word with a typographic apostrophe or an accent has the term that it had in older versions, and the plain one.
    """
    if word.isascii():
        plain = word.removesuffix("'s").replace("'", "")
        if len(plain) > _LONGEST:  # no English word
            return (plain[:_LONGEST],)
        return (str(_stemmer("english").stemWord(plain)),) if plain else ()
    found: list[str] = []
    end = 0
    for match in _UNSPACED.finditer(word):
        found += _plain(word[end : match.start()])
        run = match[0]
        found += [run[at : at + 2] for at in range(len(run) - 1)] or [run]
        if in_text and len(run) > 1:
            found += run
        end = match.end()
    found += _plain(word[end:])
    plain = _TYPOGRAPHIC.sub("'", word).removesuffix("'s")
    if plain != word:
        found += _common_terms(plain, in_text)
    elif not end and (bare := _without_marks(word)) != word:
        found += _common_terms(bare, in_text) if bare.isascii() else _plain(bare)
    else:
        return tuple(found)
    return tuple(dict.fromkeys(found))


def _written_otherwise(word: str, in_text: bool) -> Iterator[str]:
    """Yield the terms of a word as people write it without some of its letters: "Lodz", "Danang", "Muenchen"."""
    if word.isascii():
        return
    if (bare := folded(word)) != _without_marks(word):
        yield from _common_terms(bare, in_text)
    if (umlauts := word.translate(_UMLAUTS)) != word:
        yield from _common_terms(folded(umlauts), in_text)


def _stems(word: str, latin: str) -> Iterator[str]:
    """Yield the stem of a word in its language, and the stem without accents."""
    language = language_of(word, latin)
    name = stemmer_of(language)
    if is_function_word(word, language):
        return
    if name is not None and len(word) <= _LONGEST:
        stem = str(_stemmer(name).stemWord(word))
        yield from _plain(stem)
        yield from _plain(folded(stem))
    elif language == "hebrew":  # "in Jerusalem" and "the house" are one word each
        bare = _without_marks(word)
        for _ in range(_MOST_PREFIXES):
            if bare[:1] not in _HEBREW_PREFIXES or len(bare) <= _SHORTEST_PART + 1:
                return
            bare = bare[1:]
            yield bare[:_LONGEST]


@cache
def _stemmer(name: str) -> Any:
    """Return a stemmer without a cache. It holds the interpreter's lock while it stems, so threads may share it."""
    return _SNOWBALL.Stemmer(name, 0)


def _without_marks(word: str) -> str:
    """Return a word without accents and vowel points. Vowel signs of India stay: without them it is another word."""
    if _INDIC.search(word):
        return word
    return "".join(char for char in normalized("NFD", word) if unicodedata.category(char) != "Mn")


def folded(word: str) -> str:
    """Return a word without accents, with plain letters and digits."""
    bare = _without_marks(word).translate(_LETTERS)
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in bare)


def _plain(word: str) -> list[str]:
    kept = _APOSTROPHE.sub("", word)[:_LONGEST]
    return [kept] if kept else []
