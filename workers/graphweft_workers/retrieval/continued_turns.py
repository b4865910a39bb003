"""Turns whose subject is another: "No, it's May 5th.", "Sorry, I meant Bergen.", "Blue.", and quoted people. Pure."""

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
    r"(?:(?:no|nope|nah|not|wrong|actually|sorry|wait|oops|correction|i meant?|make that|nein|doch|eigentlich|moment|"
    r"korrektur|nee|non|en fait|n\u00e3o|\u043d\u0435\u0442|hay\u0131r|nie)\b[\s,.:;!\u2014-]*)+"
)
"""The beginning of a correction. An agreement ("yes") behind a question is an answer by the mark of the question."""
_POINTING: Final = re.compile(
    r"(?:it|that|this|he|she|they|those|these|mine|hers|his)(?:['\u2019](?:s|re|ll|d)\b|\s+(?:is|was|are|were|has|had)\b|"
    r"\s*$)"
)
_NAMED: Final = re.compile(
    r"(?:(?:oh|ah|hm+|sorry|oops|whoops|no|ups|oh nein)[\s,!.]+)*(?:correction|korrektur|scratch that|i meant|"
    r"(?:actually|wait),? no|no,? (?:actually|wait)|my (?:mistake|bad)|i (?:mixed|got|messed) "
    r"(?:that|it|this|them|those) (?:up|wrong)|i (?:was wrong|misspoke|made a mistake)|that was (?:wrong|a "
    r"typo|a mistake)|nein,? (?:doch|moment|warte)|moment,? n(?:ein|icht)|ich meinte|das stimmt nicht|ich habe "
    r"mich (?:geirrt|vertan)|(?:mein|das war ein) (?:fehler|irrtum))\b"
    r"|(?:oh[\s,!.]+)?(?:oops|whoops|ups)\b[\s,:;!.\u2014-]+(?:the|my|our|it|that|der|die|das|mein\w*)\b.*"
    r"\b(?:is|are|should be|ist|sind)\b|(?:oh[\s,!.]+)?(?:oops|whoops|ups)\b[\s,:;!.\u2014-]+(?:it|that)['\u2019]s\b"
)
"""The beginning of what is a correction however long it is."""
_CHANGE: Final = re.compile(
    r"(?:(?:also|and|then|now|please|oh|could you|can you|bitte|und),? )*"
    r"(?:(?:add|put|write|include|remove|delete|drop|take|cross)\b.* (?:to|from|off|on|in|into) (?:it|that|them)\b"
    r"|(?:f\u00fcg|setz|schreib|nimm|streich)\w*\b.* (?:dazu|hinzu|drauf|davon|daraus)\b)"
)
"""What is to be changed in something that was said before."""
_INSTEAD: Final = re.compile(r"\bnicht\b.{1,40}\bsondern\b|\bnot\b.{1,40}, but\b")
"""One thing in place of another."""
_QUOTE: Final = re.compile(
    r"(?:^|[\s(:,])[\"\u201c\u201d\u201e\u00ab\u00bb](?=\S)"
    r"(?:[^\"\u201c\u201d\u201e\u00ab\u00bb]*\s)?(?:i|i['\u2019](?:m|ve|ll|d)|my|we|our|ich|mein\w*|wir|unser\w*)\s"
    r"[^\"\u201c\u201d\u201e\u00ab\u00bb]*[\"\u201c\u201d\u00ab\u00bb]",
    re.IGNORECASE,
)
_COURTESY: Final = re.compile(
    r"(?:thanks?|thank you|ok|okay|great|cool|nice|bye|hi|hello|hey|sure|please|good|wow|haha|lol|how|noted|"
    r"got it|i see|understood|done|welcome|love|so|what an?|congrat\w*|awesome|amazing|sounds)\b"
)


_SENTENCE: Final = re.compile(r"(?:i|we|you|the|a|an|my|our|your|his|her|their|there|let|don['\u2019]?t)\b")
"""The beginning of a sentence, which says what it is about."""


def is_correction(text: str) -> bool:
    """Return whether a turn says itself that it corrects what was said before: "Sorry, I meant Bergen." """
    low = _plain(text)
    return not _says_nothing_alone(low) and _NAMED.match(low) is not None


def corrects(text: str) -> bool:
    """Return whether a turn corrects or changes what was said before, and does not say what that is."""
    low = _plain(text)
    if _says_nothing_alone(low):
        return False
    if _NAMED.match(low) or _CHANGE.match(low):
        return True
    correction = _CORRECTION.match(low)
    if correction is None:
        return False
    rest = low[correction.end() :]
    if _INSTEAD.search(low):
        return True
    return _POINTING.match(rest) is not None or (_SENTENCE.match(rest) is None and _is_bare(rest, _LONGEST_BARE + 2))


def quotes_another(text: str) -> bool:
    """Return whether a turn quotes somebody who speaks of themselves: 'Imane said "I live in Oslo"'."""
    return _QUOTE.search(text) is not None


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
