"""Turns of a conversation that tell nothing: questions, and answers that only say that the answer is unknown.

A search ranks them behind the others: a question repeats the words of the next question, but not the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LONGEST: Final = 300
"""Characters: a longer text tells something."""
_MOST_WORDS: Final = 15
"""Of a question without a question mark."""
_END: Final = re.compile(r"[.!?\u3002\uff01\uff1f\u061f\r\n]\s*")
_ENDS_ALONE: Final = frozenset("\u3002\uff01\uff1f\r\n")
"""What ends a sentence although no blank follows."""
_MARKS: Final = ("?", "\uff1f", "\u061f")
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_CLAUSES: Final = re.compile(r"[,;:\uff0c\u3001\u2014]|\s-\s")
_LEAD: Final = r"(?:(?:and|but|so|ok|okay|well|hi|hey|hello|please|sorry|now|then|again|also)[\s,!.]+)*"
_SUBJECTS: Final = r"(?:i|you|we|he|she|they|my|your|our|his|her|their)\b"
_ASKING: Final = re.compile(
    rf"{_LEAD}(?:"
    # "When I was five, …" tells something, "When was I …" does not.
    rf"(?:what|who|whom|whose|where|when|why|which|how)(?:['\u2019]s|['\u2019]re|['\u2019]d)?\b(?!\s+(?:{_SUBJECTS}|it\b|the\b))"
    rf"|(?:is|are|am|was|were|do|does|did|can|could|will|would|shall|should|may|might|must|has|have|had|isn['\u2019]t"
    rf"|aren['\u2019]t|don['\u2019]t|doesn['\u2019]t|didn['\u2019]t|won['\u2019]t|wouldn['\u2019]t|can['\u2019]t)\b"
    r"|(?:any|anything|anybody)\b)"
)
"""The start of a sentence that asks, if it ends with a question mark."""
_ASKING_WITHOUT_MARK: Final = re.compile(
    rf"{_LEAD}(?:"
    r"(?:what|who|whose|where|when|why|which|how)(?:['\u2019]s|['\u2019]re|\s+(?:is|are|was|were|do|does|did|can|could|"
    r"will|would|should|has|have|had|many|much|old|long|often|far|big|tall|about))\b"
    rf"|(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have)\s+{_SUBJECTS}"
    r"|(?:can|could|would|will)\s+you\b"
    r"|(?:tell|remind)\s+me\b(?!\s+to\b))"
)
_TELLING: Final = re.compile(
    rf"{_LEAD}(?:i|i['\u2019]\w+|we|we['\u2019]\w+|my|our|he|she|they|it|there|this|that|the)\b"
)
_COURTESY: Final = re.compile(
    r"(?:(?:hi|hey|hello|thanks|thank you|please|sorry|ok|okay|sure|yes|no|well|hm+|um+|good (?:morning|day|evening)|"
    r"i am sorry|i['\u2019]m sorry|i apologi[sz]e|unfortunately|let me know|there)[\s,.!]*)+"
)
_UNKNOWN: Final = re.compile(
    r"\b(?:(?:do not|don['\u2019]t|did not|didn['\u2019]t) (?:know|recall|remember|see|find)\b"
    r"|(?:cannot|can not|can['\u2019]t|could not|couldn['\u2019]t|unable to) "
    r"(?:say|tell|know|see|find|recall|remember|answer)\b"
    r"|not sure\b|no (?:idea|record|records|information|details|data)\b"
    r"|(?:do not|don['\u2019]t) have (?:\w+ ){0,4}"
    r"(?:information|details|data|records?|access|memory|knowledge|answer|idea)\b"
    r"|you (?:have not|haven['\u2019]t|did not|didn['\u2019]t|never) "
    r"(?:told|tell|said|say|mention|mentioned|share|shared)\b)"
)


def tells_nothing(text: str, role: str | None) -> bool:
    """Return whether a turn only asks, or is an assistant's answer that only says that something is unknown.

    In doubt it returns False. Questions are recognized by their mark in any language, and without one in English.
    """
    if len(text) > _LONGEST:
        return False
    empty = False
    for each in _sentences(text):
        if not (low := each.strip().casefold()):
            continue
        if _asks(low) or (role == "assistant" and _UNKNOWN.search(low)):
            empty = True
        elif not _COURTESY.fullmatch(low):
            return False
    return empty


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(text):
        if len(end[0]) > 1 or end[0] in _ENDS_ALONE:
            yield text[start : end.start() + 1]
            start = end.end()
    yield text[start:]


def _asks(sentence: str) -> bool:
    bare = sentence.rstrip("\"'\u201d\u2019) !")
    if bare.endswith(_MARKS):
        if bare[:1] in {"\u00bf", "\u00a1"} or _ASKING.match(bare):
            return True
        return not _TELLING.match(bare) and not _CLAUSES.search(bare)
    if _ASKING_WITHOUT_MARK.match(bare) is None or _CLAUSES.search(bare):
        return False
    return len(_WORD.findall(bare)) <= _MOST_WORDS
