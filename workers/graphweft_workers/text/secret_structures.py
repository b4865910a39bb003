"""The values of a structure behind the name of a secret: a list, a block of lines, an array or an object. Pure.

A value on the line of its name is for ``redaction``. What is here reads on: an item of a list is as secret as the only
one. A sentence in a list, such as a rule for passwords, stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from graphweft_workers.text.secret_words import CREDENTIAL, EDGES, PASSWORD, is_given, is_mixed

_NAMED: Final = re.compile(
    rf"(?i)(?:(?P<password>{PASSWORD})|{CREDENTIAL})(?:s|en)?+[\\\"'`*_]{{0,4}}[ \t]*+(?P<sign>=>|:=|[:=])[ \t]*+"
)
"""A name and its sign. Here a name may be plural: ``passwords: [a, b]``."""
_TOKEN: Final = re.compile(
    r"\\{0,8}(?P<quote>[\"'`])(?P<quoted>(?:(?!\\{0,8}(?P=quote))[^\n])*+)\\{0,8}(?P=quote)"
    r"|(?P<open>[\[({])|(?P<close>[\])}])|(?P<bare>[^\s,\[\](){}\"'`\\]++)"
)
_BEGINS: Final = re.compile(r"[\[{(|>#]|[ \t]*+(?:\r|\n|\\n)")
_BLOCK: Final = re.compile(r"[|>][+-]?[0-9]?[+-]?[ \t]*+(?:#[^\n\\]*+)?")
_NEXT_LINE: Final = re.compile(r"(?:\r\n?+|\n|\\n)(?P<indent>[ \t]*+)(?P<line>(?:[^\r\n\\]|\\(?!n))*+)")
_ITEM: Final = re.compile(r"(?:[-*+\u2022]|[0-9]{1,2}[.)])[ \t]++(?P<item>.*)")
_MEMBER: Final = re.compile(r"[\"'`]?(?P<key>[\w.-]{1,40})[\"'`]?[ \t]*+[:=][ \t]*+(?P<value>\S.*)")
_SPACE: Final = re.compile(r"\s*+")
_INDENT: Final = re.compile(r"[ \t]*+(?:[-*+][ \t]++)*+")
_KEY_SIGN: Final = re.compile(r"\s{0,8}[:=]")
_BEHIND: Final = re.compile(r"\s|[,;\])}\"'`\\]|\Z")
_VALUE_KEYS: Final = frozenset({"value", "val", "current", "plain", "plaintext", "cleartext", "content", "data"})
"""Members of an object that hold its secret, whatever it looks like."""
_OTHER_KEYS: Final = frozenset({"type", "format", "pattern", "title", "description", "name", "id", "$ref"})
"""Members that describe it, as in a schema."""
_LONGEST: Final = 1_000
"""Characters of one structure."""
_MOST: Final = 20_000
"""Characters of all structures of a text: names may stand in the structures of others."""
_LONG_WORD: Final = 16


class SecretStructure(NamedTuple):
    """A structure behind the name of a secret."""

    sign: int
    """Where the sign behind the name ends."""
    end: int
    secrets: list[tuple[int, int]]


def structures(text: str) -> Iterator[SecretStructure]:
    """Yield the structures behind the names of secrets."""
    left = _MOST
    for match in _NAMED.finditer(text):
        if _BEGINS.match(text, match.end()) is None:
            continue
        found = _read(text, match, is_password=match["password"] is not None)
        if found is not None:
            yield SecretStructure(match.end("sign"), *found)
        left -= _LONGEST if found is None else found[0] - match.end()
        if left <= 0:
            return


type _Found = tuple[int, list[tuple[int, int]]]
"""The end of a structure, and its secrets."""


def _read(text: str, name: re.Match[str], *, is_password: bool) -> _Found | None:
    at, end = name.end(), min(len(text), name.end() + _LONGEST)
    if text.startswith(("[", "{", "("), at):
        return _brackets(text, at, end, is_password)
    block = _BLOCK.match(text, at, end)
    first = _NEXT_LINE.match(text, block.end() if block else at, end)
    if first is None:
        return None
    opening = _SPACE.match(text, at, end)
    if opening is not None and text.startswith(("[", "{"), opening.end()):
        return _brackets(text, opening.end(), end, is_password)
    return _lines(text, first, end, _indent_of(text, name.start()), is_password, is_block=block is not None)


def _indent_of(text: str, at: int) -> int:
    start = max(text.rfind("\n", max(0, at - _LONGEST), at), text.rfind("\\n", max(0, at - _LONGEST), at) + 1) + 1
    lead = _INDENT.match(text, start, at)
    return 0 if lead is None else lead.end() - start


def _lines(
    text: str, line: re.Match[str] | None, end: int, outer: int, is_password: bool, *, is_block: bool
) -> _Found | None:
    """Read the lines of a block, or the items of a list, or members that are further in than the name."""
    last, secrets = 0, list[tuple[int, int]]()
    while line is not None:
        inner, said = len(line["indent"]), line["line"].rstrip()
        if said:
            place = line.start("line")
            item, member = _ITEM.fullmatch(said), _MEMBER.fullmatch(said)
            if is_block:
                if inner <= outer:
                    break
                secrets += [(place, place + len(said))] if is_given(said) else []
            elif item is not None and inner >= outer - len("- "):
                within = _MEMBER.fullmatch(item["item"])
                group, key = (item, "") if within is None else (within, within["key"])
                word = group["item" if within is None else "value"]
                begin = place + item.start("item") + (0 if within is None else within.start("value"))
                secrets += _secret(word, begin, key or None, is_password)
            elif member is not None and inner > outer:
                secrets += _secret(member["value"], place + member.start("value"), member["key"], is_password)
            else:
                break
            last = line.end()
        line = _NEXT_LINE.match(text, line.end(), end)
    return (last, secrets) if last else None


def _brackets(text: str, at: int, end: int, is_password: bool) -> _Found | None:
    """Read what is between brackets; None if they do not end, or a word goes on behind them."""
    depth: list[str] = []
    secrets: list[tuple[int, int]] = []
    key = ""
    for token in _TOKEN.finditer(text, at, end):
        if token["open"]:
            depth.append(token["open"])
        elif token["close"]:
            depth.pop()
            if not depth:
                whole = _BEHIND.match(text, token.end()) is not None
                return (token.end(), secrets) if whole else None
        else:
            name = "bare" if token["quote"] is None else "quoted"
            if depth[-1] == "{" and _KEY_SIGN.match(text, token.end(), end):
                key = token[name]
                continue
            secrets += _secret(token[name], token.start(name), key if depth[-1] == "{" else None, is_password)
    return None


def _secret(value: str, at: int, key: str | None, is_password: bool) -> Iterator[tuple[int, int]]:
    """Yield the span of a value if it is a secret. ``key`` is its name in an object; None for an item of a list."""
    word = value.rstrip().rstrip(",;")
    quotes = len(word) - len(word.lstrip("\"'`"))
    word = word[quotes:].rstrip("\"'`")
    longest = max(word.split(), key=len, default="").strip(EDGES)
    if not is_given(word):
        return
    if key is not None and key.lower() not in _VALUE_KEYS:
        counts = is_mixed(longest) and key.lower() not in _OTHER_KEYS
    else:
        alone = " " not in word and (is_password or len(word) >= _LONG_WORD)
        counts = alone or is_mixed(longest)
    if counts:
        yield at + quotes, at + quotes + len(word)
