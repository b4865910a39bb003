"""The words that fulltext search goes by, worked out by us and not by a graph server.

Servers cut texts into words in ways of their own: one keeps stop words, one stems, one takes a hyphen for an operator.
Memories are kept with the terms that are worked out here, and questions are asked with them; so the same text is found
by the same question everywhere. A term holds letters and digits only and means nothing to any query language.

English words are stemmed by Snowball (https://snowballstem.org); words in other alphabets stay as they are, and
Chinese, Japanese and Korean text, which has no blanks, is cut into overlapping pairs of characters.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import snowballstemmer

_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_APOSTROPHE: Final = re.compile(r"['\u2019]")
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_LONGEST: Final = 64
"""Characters of a term; what is longer is cut, so that a line of base64 costs no more than a word."""
_MOST_QUERY_TERMS: Final = 64
_MOST_TERMS: Final = 20_000
"""Of one text; cutting words down to their stems takes 30 us each, and the worker waits meanwhile."""
_LONGEST_QUESTION: Final = 200_000
"""Characters; of a longer question the end counts."""
_PIECE: Final = re.compile(r"\S{1,256}")
_STEMMER: Final[Any] = snowballstemmer.stemmer("english")  # pyright: ignore[reportUnknownMemberType]

_STOP_WORDS: Final = """
a about all also am an and any are as at be because been being but by can could did do does doing for from had
has have having he her here hers him his how i if in into is it its just me more most my no nor not of on once
only or other our ours out over own s same she should so some such t than that the their theirs them then there
these they this those through to too under until up very was we were what when where which while who whom why
will with would you your yours
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""English words that say nothing about what a text is about. They are kept in texts, and left out of questions."""


def terms(text: str) -> list[str]:
    """Return the first 20,000 terms of a text in its order, with repetitions. Never raises; some texts have none."""
    found: list[str] = []
    for word in _words(_PIECE.finditer(text)):
        found += _terms_of(word)
        if len(found) >= _MOST_TERMS:
            break
    return found[:_MOST_TERMS]


def query_terms(text: str, *, filter_stop_words: bool = True) -> list[str]:
    """Return the terms to ask for, each once, at most the last 64; of a question of stop words only, the stop words.

    The last ones, because a question may be a whole conversation, and its end is what it has come to.
    """
    wanted: dict[str, None] = {}  # the last one first
    others: dict[str, None] = {}
    for piece in reversed(text[-_LONGEST_QUESTION:].split()):
        for word in reversed(list(_words(_PIECE.finditer(piece)))):
            kept = others if filter_stop_words and _APOSTROPHE.sub("", word) in _STOPPED else wanted
            if len(kept) < _MOST_QUERY_TERMS:
                kept.update(dict.fromkeys(reversed(_terms_of(word))))
        if len(wanted) >= _MOST_QUERY_TERMS:
            break
    return list(wanted or others)[:_MOST_QUERY_TERMS][::-1]


def name_key(name: str) -> str:
    """Return what is equal for all spellings of a name: NFKC, without case, and with single blanks."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _words(pieces: Iterable[re.Match[str]]) -> Iterator[str]:
    """Return the words of pieces, which are short: bringing combined characters into one form takes quadratic time."""
    for piece in pieces:
        for match in _WORD.finditer(unicodedata.normalize("NFKC", piece[0]).casefold()):
            yield match[0][: _LONGEST * 4]


_STOPPED: Final = STOP_WORDS | {
    word.replace("'", "") for word in ("don't", "doesn't", "didn't", "isn't", "i'm", "it's")
}


def scope_term(name: str, value: str) -> str:
    """Return the term that stands for a scope (``user_id``) with a value: letters and digits, whatever the value is.

    With these beside its terms, a fulltext index finds what belongs to a scope without looking at all the rest.
    """
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=10, person=name.encode()[:16])
    return name.partition("_")[0] + digest.hexdigest()


@lru_cache(maxsize=65_536)
def _terms_of(word: str) -> tuple[str, ...]:
    """Return the terms of one word; cached, for stemming takes 30 us."""
    if word.isascii():
        plain = word.removesuffix("'s").replace("'", "")
        return (str(_STEMMER.stemWord(plain))[:_LONGEST],) if plain else ()
    found: list[str] = []
    end = 0
    for match in _CJK.finditer(word):
        found += _plain(word[end : match.start()])
        run = match[0]
        found += [run[at : at + 2] for at in range(len(run) - 1)] or [run]
        end = match.end()
    return (*found, *_plain(word[end:]))


def _plain(word: str) -> list[str]:
    kept = _APOSTROPHE.sub("", word)[:_LONGEST]
    return [kept] if kept else []
