"""Turns of a conversation that tell nothing: questions, thanks, and answers that only say that something is unknown.

A search ranks them behind the others: a question repeats the words of the next question, but not the answer, and
"Wonderful." is beside every turn.
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
_NO_WORDS: Final = re.compile(r"[^\w\s',]|,\s*$|[\d_]")
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
    r"|i(?:['\u2019]d|\s+would)\s+(?:like|love)\s+to\s+(?:know|ask)\b|i\s+(?:want|wanted|need)\s+to\s+(?:know|ask)\b"
    r"|(?:tell|remind)\s+me\b(?!\s+to\b))"
)
_TELLING: Final = re.compile(
    rf"{_LEAD}(?:i|i['\u2019]\w+|we|we['\u2019]\w+|my|our|he|she|they|it|there|this|that|the)\b"
)
_COURTESY: Final = re.compile(
    r"(?:(?:hi|hey|hello|thanks|thank you|please|sorry|ok|okay|sure|yes|no|well|hm+|um+|good (?:morning|day|evening)|"
    r"i am sorry|i['\u2019]m sorry|i apologi[sz]e|unfortunately|let me know|there)[\s,.!]*)+"
)
_AFTER_THANKS: Final = (
    r"(?: (?:a lot|so much|very much|again|anyway|for (?:that|this|it|everything|asking|letting me know|"
    r"(?:your|the|all the|all your) (?:help|tip|tips|info|information|advice|time|support|quick (?:reply|answer)))))*"
)
_HOW_GOOD: Final = (
    r"(?:great|good|nice|lovely|wonderful|fine|cool|awesome|amazing|perfect|brilliant|excellent|fantastic|beautiful|"
    r"super|helpful|exciting|incredible)"
)
_POLITE: Final = re.compile(
    r"(?:(?:oh|ah|well|and|then|so|wow|very|really|great|perfect|wonderful|ok|okay|hm+)[\s,!]+)*(?:"
    rf"(?:many )?thanks{_AFTER_THANKS}|thank you{_AFTER_THANKS}|you(?:'re| are) (?:very |most |always )?welcome"
    r"|(?:my|with) pleasure|no (?:problem|worries)|any ?time|don't mention it"
    rf"|{_HOW_GOOD}|congratulations|congrats|enjoy|cheers|wow|noted(?: for \w+)?|understood|got it|i see|makes sense"
    r"|sounds (?:like (?:a plan|fun)|(?:so |very |really )?(?:fun|interesting|tasty|delicious"
    rf"|{_HOW_GOOD}))|good (?:to (?:know|hear)|idea|point|choice|luck|job|night|morning|evening|day)"
    rf"|how (?:sad|sweet|{_HOW_GOOD})|what a (?:pity|shame)|a pity|well done|happy to help"
    rf"|(?:that|this|it)(?:'s| is| was| sounds)(?: so| very| really)? (?:a (?:pity|shame)|too bad|{_HOW_GOOD})"
    r"(?: (?:to (?:know|hear)))?"
    r"|that (?:works|helps|helped)(?: (?:a lot|me a lot|a great deal))?"
    r"|i(?:'m| am) (?:so |very |really )?(?:glad|sorry|happy)(?: (?:to hear (?:that|it|this)|for you|about that))?"
    r"|i(?:'ll| will| have|'ve) (?:keep (?:that|it|this) in mind|remember(?: it| that)?|noted? (?:it|that|this)"
    r"|make a note(?: of (?:it|that))?|pass (?:that|it) on)"
    r"|(?:bye )*bye|goodbye|see you(?: (?:soon|later|tomorrow))?|take (?:care|your time)|get well(?: soon)?"
    r"|have a (?:nice|good|great|lovely|wonderful) (?:day|evening|weekend|time|trip|night|one)"
    r")(?:,? (?:too|then|now|today|bye|thanks|thank you))*"
)
"""A sentence that is only polite. Agreement ("okay", "yes") is not among it: it may answer a question."""
_REQUEST: Final = re.compile(
    r"\b(?:please|bitte)\b(?! (?:note|remember|know|be aware|keep in mind|don['\u2019]t forget|beachte|merk))"
    r"|\b(?:can|could|would|will) you\b"
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
    """Return whether a turn only asks or thanks, or is an assistant's answer that only says that something is unknown.

    In doubt it returns False. Questions are recognized by their mark in any language; those without one, and what is
    only polite, in English.
    """
    return any(_does(text, role))


def only_asks(text: str) -> bool:
    """Return whether a turn of a user only asks."""
    asks, _ = _does(text, "user")
    return asks


def requests(text: str) -> bool:
    """Return whether a turn asks to do something: "Please move the contract." """
    return _REQUEST.search(text.casefold()) is not None


def _does(text: str, role: str | None) -> tuple[bool, bool]:
    """Return whether all that a turn does is to ask, and whether it is to be polite."""
    if len(text) > _LONGEST:
        return False, False
    asks = polite = thanks = False
    for each in _sentences(text):
        low = each.strip().casefold()
        if _asks(low) or (role == "assistant" and _UNKNOWN.search(low)):
            asks = True
        elif _COURTESY.fullmatch(low):
            thanks = thanks or _is_polite(low)
        elif _is_polite(low):
            polite = True
        elif _WORD.search(low):
            return False, False
    # "Wow! What got you into running?" says that somebody runs.
    return asks and not polite, not asks and (polite or thanks)


def _is_polite(sentence: str) -> bool:
    plain = " ".join(_NO_WORDS.sub(" ", sentence.replace("\u2019", "'")).split())
    return _POLITE.fullmatch(plain) is not None


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
