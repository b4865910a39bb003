"""Turns whose subject is in a turn before: "No, it's May 5th.", "Sorry, I meant Bergen.", "Blue." Pure."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 120
"""Characters: a longer turn says what it is about."""
_LONGEST_BARE: Final = 3
"""Words of a turn that says nothing but an answer."""
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


def continues(text: str, role: str) -> bool:
    """Return whether a turn corrects or completes what was said before, and does not say what that is.

    A few words without a sign of that, such as "Blue.", count where the user says them: an assistant acknowledges.
    """
    low = " ".join(text.casefold().split())
    if not low or len(low) > _LONGEST or low.endswith(("?", "\uff1f", "\u061f")):
        return False
    correction = _CORRECTION.match(low)
    rest = low[correction.end() :] if correction else low
    if correction and _POINTING.match(rest):
        return True
    if _COURTESY.match(rest) or (not correction and (role == "assistant" or _SENTENCE.match(rest))):
        return False
    return 0 < len(_WORD.findall(rest)) <= _LONGEST_BARE + bool(correction)
