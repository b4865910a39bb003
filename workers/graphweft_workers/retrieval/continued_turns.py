"""Turns whose subject is in a turn before: "No, it's May 5th.", "Sorry, I meant Bergen.", "Blue." Pure."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 120
"""Characters: a longer turn says what it is about."""
_LONGEST_BARE: Final = 2
"""Words of a turn that says nothing but an answer: three are a sentence in many languages."""
_LONGEST_RUN: Final = 4
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\uac00-\ud7af]")
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_CORRECTION: Final = re.compile(
    r"(?:no|nope|nah|not|wrong|actually|sorry|wait|oops|correction|i meant?|make that|nein|doch|eigentlich|nee|non|"
    r"en fait|n\u00e3o|\u043d\u0435\u0442|hay\u0131r|nie)\b[\s,.:;!\u2014-]*"
)
"""The beginning of a correction. An agreement ("yes") behind a question is an answer by the mark of the question."""
_POINTING: Final = re.compile(
    r"(?:it|that|this|he|she|they|those|these|mine|hers|his)(?:['\u2019](?:s|re|ll|d)\b|\s+(?:is|was|are|were|has|had)\b|"
    r"\s*$)"
)
_COURTESY: Final = re.compile(
    r"(?:thanks?|thank you|ok|okay|great|cool|nice|bye|hi|hello|hey|sure|please|good|wow|haha|lol|how|noted|"
    r"got it|i see|understood|done|welcome|love|so|what an?|congrat\w*|awesome|amazing|sounds)\b"
)


_SENTENCE: Final = re.compile(r"(?:i|we|you|the|a|an|my|our|your|his|her|their|there|let|don['\u2019]?t)\b")
"""The beginning of a sentence, which says what it is about."""


def corrects(text: str) -> bool:
    """Return whether a turn corrects what was said before, and does not say what that is."""
    low = _plain(text)
    correction = _CORRECTION.match(low)
    if correction is None or _says_nothing_alone(low):
        return False
    rest = low[correction.end() :]
    return _POINTING.match(rest) is not None or _is_bare(rest, _LONGEST_BARE + 2)


def is_bare_answer(text: str, role: str) -> bool:
    """Return whether a turn is a few words of the user, such as "Blue.": an assistant acknowledges in as many."""
    low = _plain(text)
    if role == "assistant" or _says_nothing_alone(low) or _CORRECTION.match(low) or _SENTENCE.match(low):
        return False
    return _is_bare(low, _LONGEST_BARE)


def _plain(text: str) -> str:
    return " ".join(text[: _LONGEST + 1].casefold().split())


def _says_nothing_alone(low: str) -> bool:
    return not low or len(low) > _LONGEST or low.endswith(("?", "\uff1f", "\u061f"))


def _is_bare(low: str, most: int) -> bool:
    """Return whether a text has a few words; a run of a script without blanks may be a sentence."""
    if _COURTESY.match(low):
        return False
    words = _WORD.findall(low)
    return 0 < len(words) <= most and not any(len(word) > _LONGEST_RUN and _UNSPACED.match(word) for word in words)
