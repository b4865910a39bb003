"""Terms: the words of a text in the form that fulltext search compares.

Graph servers tokenize in different ways, so texts are stored, and questions asked, with terms from here. A term has
letters, digits and the signs of letters only, so no query language reads it as an operator.

English words are stemmed by Snowball (https://snowballstem.org). Words in other alphabets stay as they are, and have a
second term without accents and vowel points. Text of scripts without blanks between words (Chinese, Japanese, Korean,
Thai, Lao, Burmese, Khmer) is cut into overlapping pairs of characters, and into single ones, which only a question of
one character asks for.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final

import Stemmer

_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0900-\u0963\u0970-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
    "\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u1056-\u1059\u105e-\u109d\u17b4-\u17d3\u17dd"
)
"""Signs above, below and beside letters, which belong to a word, and the letters of India between them."""
_WORD: Final = re.compile(rf"[^\W_][\w{_MARKS}]*(?:['\u2019][^\W_][\w{_MARKS}]*)*")
"""A word of a text in which blanks stand for underscores."""
_APOSTROPHE: Final = re.compile(r"['\u2019]")
_TYPOGRAPHIC: Final = re.compile(r"[\u2019\u02bc]")
_UNSPACED: Final = re.compile(
    r"[\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+"
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
_SHORT: Final = 256
"""Limit of characters in a name or fact whose terms are cached."""
_PIECE: Final = re.compile(r"\S{1,256}")
# Without a cache of its own. It holds the interpreter's lock while it stems, so threads may share it.
_ENGLISH: Any = Stemmer  # it has no types
_STEMMER: Final[Any] = _ENGLISH.Stemmer("english", 0)

_STOP_WORDS: Final = """
a about all also am an and any are as at be because been being but by can could did do does doing for from had
has have having he her here hers him his how i if in into is it its just me more most my no nor not of on once
only or other our ours out over own s same she should so some such t than that the their theirs them then there
these they this those through to too under until up very was we were what when where which while who whom why
will with would you your yours
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""English words without a topic. Texts keep them; questions drop them."""


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
        for at, word in _words(_PIECE.finditer(text)):
            if word not in known and len(known) >= most_words:
                unsearched = len(text) - at
                break
            known.add(word)
            of_word = _terms_of(word, True)
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
    for piece in reversed(text[-_LONGEST_QUESTION:].split()):
        for _, word in reversed(list(_words(_PIECE.finditer(piece)))):
            kept = others if filter_stop_words and _is_stop_word(word) else wanted
            if len(kept) < _MOST_QUERY_TERMS:
                kept.update(dict.fromkeys(reversed(_terms_of(word, False))))
        if len(wanted) >= _MOST_QUERY_TERMS:
            break
    first, second = (list(each)[:_MOST_QUERY_TERMS][::-1] for each in (wanted, others))
    return first, second


def placed_terms(text: str) -> Iterator[tuple[int, str]]:
    """Yield each term of a text with the place of its piece: of the characters around it up to the blanks."""
    for at, word in _words(_PIECE.finditer(text)):
        for term in _terms_of(word, True):
            yield at, term


def name_key(name: str) -> str:
    """Return a name in the form that is equal for all its spellings: NFKC, case-folded, single blanks."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _words(pieces: Iterable[re.Match[str]]) -> Iterator[tuple[int, str]]:
    """Yield the words of short pieces of text, each with the start of its piece: NFKC takes quadratic time."""
    for piece in pieces:
        for match in _WORD.finditer(unicodedata.normalize("NFKC", piece[0]).casefold().replace("_", " ")):
            yield piece.start(), match[0][: _LONGEST * 4]


def _read(text: str) -> tuple[list[str], AbstractSet[str]]:
    """Return the terms of a text, and its different words."""
    one = EventTerms(most_words=MOST_TERMS)
    return one.first(text)[0], one._words  # pyright: ignore[reportPrivateUsage]


@lru_cache(maxsize=16_384)
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


def scope_term(name: str, value: str) -> str:
    """Return the term for a value of a scope such as ``user_id``: letters and digits, whatever the value is.

    Stored beside the terms of a text, it lets a fulltext index filter by scope.
    """
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=10, person=name.encode()[:16])
    return name.partition("_")[0] + digest.hexdigest()


@lru_cache(maxsize=65_536)
def _terms_of(word: str, in_text: bool) -> tuple[str, ...]:
    """Return the terms of one word of a text or of a question; cached, because most words repeat.

    A word with a typographic apostrophe or an accent has the term that it had in older versions, and the plain one.
    """
    if word.isascii():
        plain = word.removesuffix("'s").replace("'", "")
        if len(plain) > _LONGEST:  # no English word
            return (plain[:_LONGEST],)
        return (str(_STEMMER.stemWord(plain)),) if plain else ()
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
        found += _terms_of(plain, in_text)
    elif not end and (bare := _without_marks(word)) != word:
        found += _terms_of(bare, in_text) if bare.isascii() else _plain(bare)
    else:
        return tuple(found)
    return tuple(dict.fromkeys(found))


def _without_marks(word: str) -> str:
    """Return a word without accents and vowel points. Vowel signs of India stay: without them it is another word."""
    if _INDIC.search(word):
        return word
    return "".join(char for char in unicodedata.normalize("NFD", word) if unicodedata.category(char) != "Mn")


def _plain(word: str) -> list[str]:
    kept = _APOSTROPHE.sub("", word)[:_LONGEST]
    return [kept] if kept else []
