"""Stage 1, seed: recalled documents (path A) and names in the question (path B)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from graphweft_rules.normal_form import normalized
from graphweft_workers.features.graphrag.caps import MOST_DOCUMENTS, MOST_MENTIONS, MOST_NAMES
from graphweft_workers.text.terms import STOP_WORDS, name_key

_LARGEST: Final = sys.float_info.max
_LONGEST_ID: Final = 512
_LONGEST_TEXT: Final = 20_000
"""Limit of characters of a question that are searched for names."""
_LONGEST_DOCUMENT: Final = 4_000
"""The same for each of up to 20 documents."""
_LONGEST_NAME: Final = 100
_MOST_WORDS: Final = 4
"""Limit of words in a name that is not quoted or capitalised."""
_MOST_OF_DOCUMENT: Final = 10
_WORDS_OF_DOCUMENT: Final = 200
"""Words of each document that may be names without a mark of one."""
_QUOTED: Final = re.compile(
    r"\"([^\"\n]{2,100})\"|`([^`\n]{2,100})`|\u201c([^\u201d\n]{2,100})\u201d|'([^'\n]{2,100})'(?!\w)"
)
_RUN: Final = re.compile(r"(?<![^\W_])[^\W_]++(?:[._/:#@+-]++[^\W_]++)*+")
_IDENTIFIER: Final = re.compile(r"[._/:#@+-]|[a-z][A-Z]|[^\W\d_]\d")
"""Marks an identifier: ``auth.service``, ``order_id``, ``OpenAI``, ``DOC-7``, ``k8s``."""
_CAPITALISED: Final = re.compile(
    r"(?<![\w'])[^\W\d_a-z][\w'&-]*(?:[ \t]+(?:(?:of|the|for|and|de|von|van|der|la)[ \t]+)?[^\W_a-z][\w'&-]*)*"
)
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019.+#_/-][^\W_]+|\+\+|#)*")
_SENTENCE_END: Final = re.compile(
    r"(?<![.!?;:,()\[\]{}\n])[.!?;:,()\[\]{}\n]++(?:\s|\Z|(?<=[.!?;:,()\[\]{}\n]\n))"  # possessive: linear time
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A recalled document."""

    id: str | int | None = None
    """None: only the names in its text are looked up."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """Documents and names to look up in the graph, best first."""

    documents: tuple[Document, ...] = ()
    terms: tuple[str, ...] = ()
    """Possible names of entities: from the question, then from the documents."""

    @property
    def ids(self) -> list[str | int]:
        """The documents' ids."""
        return [document.id for document in self.documents if document.id is not None]

    @property
    def names(self) -> list[str]:
        """The terms in the usual spellings of names."""
        spelt = (spelling for term in self.terms for spelling in _spellings(term))
        return list(_first(filter(_is_short, spelt), MOST_NAMES))

    @property
    def keys(self) -> list[str]:
        """The terms in the form of ``name_key``."""
        return list(_first(filter(_is_short, map(name_key, self.terms)), MOST_NAMES))


def seed(query_text: str, documents: Iterable[Any] | None = None) -> Seeds:
    """Return the documents and names to look up. Deterministic.

    A document is a mapping or object with ``id`` (text or integer), ``text`` or both, and optionally ``score``; others
    are dropped. The 20 with the highest scores count, or the first 20 without scores.
    """
    found: dict[str | int | Document, tuple[float, Document]] = {}
    for each in documents or ():
        document = _document(each)
        if document is not None:
            found.setdefault(document if document.id is None else document.id, (_score(each), document))
    best = sorted(found.values(), key=lambda pair: -pair[0])[:MOST_DOCUMENTS]
    kept = tuple(document for _, document in best)
    terms = dict.fromkeys(entity_terms(query_text))
    for document in kept:
        terms.update(dict.fromkeys(_first(_marked(document.text, _LONGEST_DOCUMENT), _MOST_OF_DOCUMENT)))
    return Seeds(documents=kept, terms=tuple(_first(terms, MOST_NAMES)))


def mentioned_keys(texts: Sequence[str]) -> tuple[list[str], int]:
    """Return what the texts of documents may mention, in the form of ``name_key``, and how many names are left out.

    The texts take turns. Of each, marked names come first, then its words, then runs of two to four words, as in
    a question: the names of a graph are in lower case as often as not.
    """
    each = [list(dict.fromkeys(filter(_is_short, map(name_key, _mentions(text))))) for text in texts[:MOST_DOCUMENTS]]
    found = list(dict.fromkeys(key for turn in zip_longest(*each) for key in turn if key))
    return found[:MOST_MENTIONS], max(0, len(found) - MOST_MENTIONS)


def _mentions(text: str) -> Iterator[str]:
    plain = _plain(text, _LONGEST_DOCUMENT)
    yield from _marked(plain, _LONGEST_DOCUMENT)
    left, sentences = _WORDS_OF_DOCUMENT, list[list[str]]()
    for sentence in _SENTENCE_END.split(plain):
        sentences.append(_WORD.findall(sentence)[:left])
        left -= len(sentences[-1])
        if left <= 0:
            break
    for size in range(1, _MOST_WORDS + 1):
        yield from _runs_of(sentences, size)


def entity_terms(text: str) -> list[str]:
    """Return the possible names of entities in a question, likeliest first, at most 200.

    First quoted, identifier-like or capitalised text, in order; then runs of four to one words of a sentence that
    neither begin nor end with a stop word.
    """
    return list(_first((*_marked(text), *_runs(text)), MOST_NAMES))


def _document(value: Any) -> Document | None:
    id, text = _of(value, "id"), _of(value, "text")
    if type(id) is int:
        sound = -(2**63) <= id < 2**63
    else:
        sound = isinstance(id, str) and 0 < len(id) <= _LONGEST_ID and _is_text(id)
    text = text if isinstance(text, str) else ""
    return Document(id=id if sound else None, text=text) if sound or text else None


def _score(value: Any) -> float:
    score = _of(value, "score")
    # Compared before it becomes a float, which a number of 400 digits cannot.
    return float(score) if isinstance(score, int | float) and -_LARGEST <= score <= _LARGEST else 0.0


def _of(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(value, name, None)


def _is_text(text: str) -> bool:
    """Tell whether every server accepts a text: without lone surrogates and NUL."""
    return not any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)


def _marked(text: str, most: int = _LONGEST_TEXT) -> Iterator[str]:
    """Yield quoted, identifier-like and capitalised names in the first ``most`` characters, in order."""
    plain = _plain(text, most)
    found: list[tuple[int, str]] = []
    for match in _QUOTED.finditer(plain):
        found.append((match.start(), next(filter(None, match.groups()))))
    for match in _RUN.finditer(plain):
        if _IDENTIFIER.search(match[0]):
            found.append((match.start(), match[0]))
    for match in _CAPITALISED.finditer(plain):
        found += [(match.start(), phrase) for phrase in _phrases(match[0])]
    for _, name in sorted(found, key=lambda pair: pair[0]):
        if name := _trimmed(name):
            yield name


def _phrases(phrase: str) -> Iterator[str]:
    """Yield a capitalised phrase without stop words at its ends: "What Payments" is "Payments"."""
    words = phrase.split()
    kept = [place for place, word in enumerate(words) if word.casefold() not in STOP_WORDS]
    words = words[kept[0] : kept[-1] + 1] if kept else []
    if words:
        yield " ".join(words)
        if len(words) > 1:  # any first word of a sentence is capitalised
            yield " ".join(words[1:])


def _runs(text: str) -> Iterator[str]:
    sentences = [_WORD.findall(sentence) for sentence in _SENTENCE_END.split(_plain(text))]
    for size in range(_MOST_WORDS, 0, -1):
        yield from _runs_of(sentences, size)


def _runs_of(sentences: Iterable[Sequence[str]], size: int) -> Iterator[str]:
    for words in sentences:
        for at in range(len(words) - size + 1):
            run = words[at : at + size]
            if run[0].casefold() not in STOP_WORDS and run[-1].casefold() not in STOP_WORDS:
                yield _trimmed(" ".join(run))


def _plain(text: str, most: int = _LONGEST_TEXT) -> str:
    cut = text[:most]
    return normalized("NFC", cut if _is_text(cut) else cut.encode("utf-8", "ignore").decode().replace("\0", " "))


def _trimmed(name: str) -> str:
    name = " ".join(name.split()).removesuffix("'s").removesuffix("\u2019s").strip("-'& ")
    return name if len(name) <= _LONGEST_NAME else ""


def _spellings(term: str) -> Iterator[str]:
    words = term.split(" ")
    yield from (term, term.lower(), term.upper())
    yield " ".join(word[:1].upper() + word[1:] for word in words)
    yield " ".join(word.capitalize() for word in words)


def _is_short(name: str) -> bool:
    """Tell whether a spelling can be looked up: NFKC makes up to 18 characters of one."""
    return len(name) <= _LONGEST_ID


def _first(names: Iterable[str], most: int) -> Iterator[str]:
    seen: dict[str, None] = {}
    for name in names:
        if len(seen) == most:
            return
        if name and name not in seen:
            seen[name] = None
            yield name
