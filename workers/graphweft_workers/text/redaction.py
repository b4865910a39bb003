"""Redaction of secrets in text that a model reads: see ``redact``.

The kinds of secrets are rows of two tables, ``secret_keys`` and ``secret_shapes``. What is here needs more than a
pattern: a value that is assigned to a name, a word near one, a secret across a line break or in a disguise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Final

from graphweft_rules.output.look_alikes import plain
from graphweft_workers.text.secret_keys import key_pattern
from graphweft_workers.text.secret_shapes import LOGINS, NAMED, SHAPES, SecretShape
from graphweft_workers.text.secret_signs import LONG, may_break, may_name_a_secret, signs_of
from graphweft_workers.text.secret_structures import structures
from graphweft_workers.text.secret_words import (
    CREDENTIAL,
    EDGES,
    NAME,
    PASSWORD,
    PLAIN_WORD,
    PROSE,
    QUOTES,
    WORDS,
    is_given,
    is_mixed,
    is_strange,
)
from graphweft_workers.text.terms import STOP_WORDS

REDACTED: Final = "[REDACTED]"
_MAX_CHARS: Final = 4_000
_ROUNDS: Final = 4
"""Brackets that did not fit may fit once a secret among them is masked, and show another one."""
_STRIDE: Final = 3_000
"""Distance of the windows in which a longer text is read. A secret of up to 1,000 characters is whole in one."""
_BREAK: Final = re.compile(
    r"(?<![ \t])[ \t]*\\?(?:\r?\n|\r|\\r\\n|\\n)[ \t]*(?:(?:#+|//+|\*+|>+|\|+|;+|--+(?=[ \t])|<!--|%+)[ \t]*)*[\"'`]?"
    r"|[\"'`][ \t]*(?:[+.&][ \t]*)?(?:\\?(?:\r?\n|\r)[ \t]*(?:[+.&][ \t]*)?)?[\"'`](?=[A-Za-z0-9_./+-])"
)
"""A line break, also of a comment, or the gap between two quoted parts: one key may stand on both sides of it."""
_ASSIGNED: Final = re.compile(
    rf"(?is)(?P<option>(?<![\w-])--?[\w-]{{0,40}}?)?(?P<tagged><[\w:.-]{{0,40}}?)?(?:(?P<password>{PASSWORD})|(?:{CREDENTIAL}))"
    r"(?:[._-]?+(?:[0-9]++|prod(?:uction)?+|dev|test|staging|live|value|old|new|hash|b64|base64))*+"
    # `password = `, `"token": `, `<password>`, `password is `, `--token `
    r"(?:[\\\"'`*_)\]]{0,4}\s*+(?P<sign>=>|:=|={1,3}|:{1,2}|->)|(?(tagged)>|(?!))"
    r"|(?P<is>[\"'`*]*+\s++(?:is|was|are)(?:\s++set\s++to)?[\s:]++)|(?(option)[ \t]++|(?!)))"
    r"(?P<lead>(?:\s|\\(?=\s)|#++(?=\s)|//++(?=\s)|\*++(?=\s)|[|>][+-]?(?=\s)|--++(?=\s)|\|(?=\s)|!!?\w++(?=\s)"
    r"|&[\w.-]++(?=[ \t]))*+)"
    r"(?:[bfru]{0,2}(?P<quote>\\*+(?:\"\"\"|'''|[\"'`]))(?P<quoted>(?:(?!(?P=quote))(?:\\.|.))*+)|(?P<run>(?(tagged)[^\s<]|\S)+))"
)
_NO_SPACE: Final = re.compile(r"[^\s\"'<>]+")
_URL: Final = re.compile(
    r"(?<=[A-Za-z0-9+.-]{2})://(?P<value>[^\s/?#:@\"'<>]*:(?![0-9]{1,5}(?:[/?#\s\"'<>]|\Z))[^\s\"'<>]+)@"
)
"""postgres://ann:PASSWORD@host, in a text that ends with the last @ of a word."""
_LIST: Final = re.compile(r"[\"'`]?[ \t]*+:[ \t]*+\n[ \t]*[-*][ \t]+")
_LEAD: Final = re.compile(r"[\s#/*>;<!-]*+(?:(?:export|set|let|const|var)\s+)?[\w.-]*")
"""What stands in front of a password that begins a line."""
_LONGEST_LEAD: Final = 200
_LONGEST_REST: Final = 400
_NEAR: Final = 80
"""Characters behind the name of a secret in which a strange word is one."""
_SEED: Final = re.compile(r"(?i)\b(?:seed|recovery|mnemonic|secret)[ _-]?(?:phrase|words)|\bmnemonic")
_SEED_PHRASE: Final = re.compile(r"(?<![A-Za-z])(?:[a-z]{3,8}[ \t,]+){11,}[a-z]{3,8}(?![A-Za-z])")


def redact(text: str) -> str:
    """Return the text with ``[REDACTED]`` in place of each secret. Never raises; a second call changes nothing.

    Only the first 4,000 characters are read and returned. A secret is an API key, a token, a private key (without its
    end, all that follows), the user and password of a URL or a command, the number of a payment card, a long run of
    mixed letters and digits, or a value that is assigned to a password, a token or the like, or stands near its name.
    """
    text = _bounded(text)
    for _ in range(_ROUNDS):
        shown = _masked(text, _secrets(text))
        if shown == text:
            break
        text = shown
    return text


def redact_value(label: str, text: str) -> str:
    """Return the text as ``redact`` does when ``label: `` stands in front of it."""
    text = _bounded(text)
    return _masked(text, [*_secrets_behind(label, text), *_secrets(text)])


@lru_cache(maxsize=2_048)
def redact_cell(label: str, text: str) -> str:
    """Return a text of any length with ``[REDACTED]`` in place of each secret; ``label`` is the name of its column.

    Ids stay as they are: the text of a column ``id`` or ``…_id``, except ``session_id``, because an agent needs it.
    """
    if label == "id" or (label.endswith("_id") and not label.endswith("session_id")):
        return text
    if len(text) <= _MAX_CHARS:
        return redact_value(label, text) if label else redact(text)
    # A list may be longer than a window.
    found = (
        [span for each in structures(text) for span in each.secrets] if may_name_a_secret(text, text.lower()) else []
    )
    for start in range(0, len(text), _STRIDE):
        found += ((start + first, start + last) for first, last in _secrets(text[start : start + _MAX_CHARS]))
    return _masked(text, found)


def redact_beside(label: str, text: str) -> str:
    """Return the text without each word that looks like a secret, if ``label`` ends with the name of a secret."""
    label, text = _bounded(label), _bounded(text)
    names = list(NAME.finditer(label))
    if not names or label[names[-1].end() :].strip(EDGES + " "):
        return text
    looks = is_mixed if names[-1]["password"] else is_strange
    return _masked(text, [word.span() for word in WORDS.finditer(text) if looks(word[0].strip(QUOTES))])


def is_value(label: str, text: str) -> bool:
    """Tell whether a text looks like the secret that ``label`` names."""
    text = _bounded(text).strip()
    if not is_mixed(text) or not (found := _secrets_behind(label, text)):
        return False
    alone = _secrets(text)
    return _masked(text, [*found, *alone]) != _masked(text, alone)


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - len(REDACTED)] + REDACTED


def _masked(text: str, found: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    at, until = 0, -1
    for start, end in sorted(found):
        if start > until:
            parts += [text[at:start], REDACTED]
        until = at = max(until, end)
    return "".join(parts) + text[at:]


def _secrets_behind(label: str, text: str) -> list[tuple[int, int]]:
    """Return where secrets stand in a text when ``label: `` stands in front of it."""
    head = f"{_bounded(label)}: "
    return [(max(0, start - len(head)), end - len(head)) for start, end in _secrets(head + text) if end > len(head)]


def _secrets(text: str) -> list[tuple[int, int]]:
    """Return where secrets stand in a text, also behind look-alike letters and across line breaks."""
    places: Sequence[int] = range(len(text))
    seen = text
    if not (text.isascii() and text.isprintable()):
        pairs = [(shown, at) for at, char in enumerate(text) for shown in plain(char)]
        seen, places = "".join(shown for shown, _ in pairs), [at for _, at in pairs]
    found = [(places[start], places[end - 1] + 1) for start, end in _secret_spans(seen)]
    if may_break(seen) and (breaks := [*_BREAK.finditer(seen)]):
        gaps = {at for match in breaks for at in range(*match.span())}
        left = [at for at in range(len(seen)) if at not in gaps]
        whole = "".join(seen[at] for at in left)
        found += [(places[left[start]], places[left[end - 1]] + 1) for start, end in _across(seen, whole, left)]
    return found


def _across(text: str, whole: str, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield what is a key only in a text without its breaks: ``places`` says where in the text its characters stand."""
    signs = signs_of(whole)
    ends = {match.end() for match in key_pattern().finditer(text)} if LONG in signs else set[int]()
    for match in key_pattern().finditer(whole) if LONG in signs else ():
        start, end = match.span()
        for at in range(start + 1, end):
            # A key that is whole at the end of a line does not go on with the word that begins the next line.
            if places[at - 1] + 1 in ends and places[at] > places[at - 1] + 1:
                end = at if re.fullmatch(r"[A-Za-z]?[a-z]*[.,;:!?]?", whole[at:end]) else end
                break
        yield start, end
    yield from _logins(whole, signs)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern, at its first use: to compile all takes a tenth of a second."""
    return re.compile(pattern)


def _matches(shapes: Iterable[SecretShape], text: str, signs: str) -> Iterator[tuple[int, int]]:
    for shape in shapes:
        one, other = shape.signs
        for match in _compiled(shape.pattern).finditer(text) if one in signs and other in signs else ():
            if shape.counts(match[match.lastgroup or 0]):
                yield match.span(match.lastgroup or 0)


def _logins(text: str, signs: str) -> Iterator[tuple[int, int]]:
    if "://" in signs and "@" in signs:
        for word in _NO_SPACE.finditer(text):
            # Each URL of a word goes up to its last @: so none looks for it in vain.
            for match in _URL.finditer(text, word.start(), text.rfind("@", *word.span()) + 1):
                if REDACTED not in match["value"]:
                    yield match.span("value")
    yield from _matches(LOGINS, text, signs)


def _secret_spans(text: str) -> Iterator[tuple[int, int]]:
    signs = signs_of(text)
    yield from _logins(text, signs)
    for match in key_pattern().finditer(text) if LONG in signs else ():
        yield match.span()
    yield from _matches(SHAPES, text, signs)
    if not may_name_a_secret(text, signs):
        return
    yield from _matches(NAMED, text, signs)
    inner = [*structures(text)]
    for each in inner:
        yield from each.secrets
    behind = {each.sign for each in inner}
    for match in _ASSIGNED.finditer(text):
        if match.start("lead") not in behind:  # a structure is no value: its dash or bracket stays
            yield from _assigned(text, match)
    yield from _strange(text)
    if _SEED.search(text):
        for match in _SEED_PHRASE.finditer(text):
            words = match[0].replace(",", " ").split()
            if sum(word in STOP_WORDS for word in words) * 6 <= len(words):
                yield match.span()


def _strange(text: str) -> Iterator[tuple[int, int]]:
    """Yield a strange word behind the name of a secret, on the same line or in the first item of a list."""
    until = 0  # so far words were looked at
    for match in NAME.finditer(text):
        lead = _LIST.match(text, match.end())
        begin = lead.end() if lead else match.end()
        end = text.find("\n", begin, begin + _NEAR)
        end = end if end >= 0 else begin + _NEAR
        first = [word] if begin < until and (word := WORDS.match(text, begin, end)) else []
        for near in (*first, *WORDS.finditer(text, max(begin, until), end)):
            # A key shows in its first characters that it is one: to read on at each name would take too long.
            word = WORDS.match(text, near.start(), near.start() + _NEAR)
            if word is None:
                continue
            until = max(until, word.end())
            if is_strange(word[0].strip(QUOTES)) and (whole := WORDS.match(text, near.start())):
                yield whole.start(), whole.start() + len(whole[0].rstrip("\\"))  # it escapes the quote behind


def _assigned(text: str, match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yield the span of an assigned value, if it is a secret and no part of a sentence."""
    is_password, name = match["password"] is not None, "quoted" if match["quote"] else "run"
    value, end = match[name], match.end(name)
    begin, rest = match.start(), text[end : end + _LONGEST_REST].partition("\n")[0]
    word, words = value.strip(EDGES), rest.split()
    if not is_given(value):
        return
    if match["is"]:
        is_secret = is_mixed(word)
    elif name == "quoted":
        is_secret = is_password or len(value.split()) <= 3 or is_mixed(max(value.split(), key=len))
    else:
        is_plain = PLAIN_WORD.fullmatch(word) is not None
        in_prose = is_plain and bool(rest.strip(EDGES + " "))
        if is_password:
            is_secret = not (in_prose and word.casefold() in PROSE)
            if words and len(words) < 25 and all(re.fullmatch("[a-z]+", each) for each in words):
                line = text.rfind("\n", max(0, begin - _LONGEST_LEAD - 1), begin) + 1
                starts = (line or begin <= _LONGEST_LEAD) and _LEAD.fullmatch(text, line, begin)
                end += len(rest.rstrip()) if (starts and len(words) < 6) or _SEED.match(match["password"]) else 0
        else:
            is_number = re.fullmatch(r"[0-9.,%]+[A-Za-z]{0,3}", word) is not None and len(word) < 6
            is_weak = (
                is_plain and len(word) < 16 and word[1:].islower() and match["sign"] != "=" and not match["option"]
            )
            is_secret = not is_number and not (is_weak and (in_prose or len(word) < 6 or "\n" in match["lead"]))
            is_secret = is_secret and not (in_prose and word.casefold() in PROSE)
    if is_secret:
        yield match.start(name), end
