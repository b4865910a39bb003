"""The values of a structure behind the name of a secret: a list, a block of lines, an array or an object. Pure.

A value on the line of its name is for ``redaction``. What is here reads on: an item of a list is as secret as the only
one. A sentence in a list, such as a rule for passwords, stays. Of a structure that does not end, or whose brackets do
not fit, nothing is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from graphweft_workers.text.secret_words import CREDENTIAL, EDGES, PASSWORD, PROSE, is_given, is_mixed

_KIND: Final = rf"(?:(?P<password>{PASSWORD})|{CREDENTIAL})"
_NAMED: Final = re.compile(
    rf"(?i){_KIND}(?:s|en)?+(?:[._-]?+(?:[0-9]++|prod|dev|test|live|old|new|list|map|set))*+"
    r"[\\\"'`*_]{0,4}[ \t]*+(?P<sign>=>|:=|[:=])[ \t]*+"
)
"""A name and its sign. Here a name may be plural: ``passwords: [a, b]``."""
_SECTION: Final = re.compile(
    rf"(?im)^[ \t]*+\[{{1,2}}(?:[a-z0-9_-]{{1,40}}\.){{0,4}}{_KIND}(?:s|en)?+(?P<sign>\]{{1,2}})"
)
"""A section of TOML or of an INI file: ``[passwords]``."""
_TAGS: Final = re.compile(r"(?:(?:&[\w.-]++|![\w.!/:-]*+)(?:[ \t]++|(?=[\r\n\\])|\Z))++")
"""Anchors and tags of YAML: ``&main``, ``!!seq``."""
_TYPE: Final = re.compile(r"[A-Za-z_][\w.<>\[\], |?&*]{0,80}+=(?![=>])[ \t]*+")
"""The type of a variable, and its sign: ``passwords: list[str] = [...]``."""
_MAKER: Final = re.compile(
    r"(?i)(?:%[wiq](?=[\[({])|(?:new[ \t]++)?+(?:\[[0-9.]{0,6}\][\w.*]++|map\[\w++\][\w.*]++|vec!|object\.freeze"
    r"|(?:java\.util\.|collections\.|std::)?+(?:frozen|ordered|sorted|linked|hash|tree|immutable)?+"
    r"(?:set|list|map|array(?:list|s\.aslist)?+|dict(?:ionary)?+|tuple|vector|deque|aslist|string)(?:\.of|of)?+)"
    r"(?:<[^<>\n]{0,60}>)?+(?:\[[0-9]{0,6}\])?+[ \t]*+(?=[\[({]))"
)
"""What makes a collection: ``set([...])``, ``new Array(...)``, ``[]string{...}``, ``%w[...]``."""
_TOKEN: Final = re.compile(
    r"(?P<masked>\[REDACTED\])|(?P<remark>#[ \t][^\n]*+)"
    r"|\\{0,8}(?P<quote>[\"'`])(?P<quoted>(?:(?!\\{0,8}(?P=quote))[^\n])*+)\\{0,8}(?P=quote)"
    r"|(?P<open>[\[({])|(?P<close>[\])}])|(?P<bare>[^\s,\[\](){}\"'`\\]++)"
)
_OPENS: Final = {"[": "]", "(": ")", "{": "}"}
_BEGINS: Final = re.compile(r"[\[{(|>#&!A-Za-z%]|[ \t]*+(?:\r|\n|\\n)")
_BLOCK: Final = re.compile(r"[|>][+-]?[0-9]?[+-]?[ \t]*+(?:#[^\n\\]*+)?")
_COMMENT: Final = re.compile(r"[ \t]*+(?:#[^\r\n\\]*+)?")
_NEXT_LINE: Final = re.compile(r"(?:\r\n?+|\n|\\n)(?P<indent>[ \t]*+)(?P<line>(?:[^\r\n\\]|\\(?!n))*+)")
_END_OF_LINE: Final = re.compile(r"(?:[^\r\n\\]|\\(?!n))*+")
_ITEM: Final = re.compile(r"(?:(?:[-*+\u2022]|[0-9]{1,4}[.)])[ \t]++)++(?P<item>.*)")
_MEMBER: Final = re.compile(r"[\"'`]?(?P<key>[\w.-]{1,40})[\"'`]?[ \t]*+[:=](?:[ \t]*+(?P<value>\S.*)|[ \t]*+)")
_REMARK: Final = re.compile(r"(?:#++|//++|;++)[ \t]*+(?P<rest>.*)")
_SPACE: Final = re.compile(r"\s*+")
_INDENT: Final = re.compile(r"[ \t]*+(?:[-*+][ \t]++)*+")
_KEY_SIGN: Final = re.compile(r"\s{0,8}[:=]")
_KEY: Final = re.compile(r":[ \t]++[^\s,}]")
_BEHIND: Final = re.compile(r"\s|[,;.:?!|*_\])}\"'`\\<]|\Z")
_SAID: Final = re.compile(
    r"\((?P<first>[A-Za-z'-]{1,20})(?:[ ,]{1,2}(?:[A-Za-z'-]{1,20}|[0-9]{1,3})(?![\w])){1,20}[.!?]?\)"
    r"|\[[^\[\]\n]{1,80}\]\((?:https?:/|mailto:)?+/?+[^\s()]{1,200}\)"
)
"""Words in brackets, which may be no list, and a link: ``Forgot password: (click here)``."""
_TRAIL: Final = re.compile(r"(?:\"[^\"]*+\"|'[^']*+'|(?![\"'])(?:(?![ \t]#).)++)[ \t]++(?P<sign>#)")
"""A value, and the remark behind it."""
_SMILE: Final = re.compile(r":[(\[{](?:\s|\Z)")
_EXPRESSION: Final = re.compile(r"[\w)\]] (?:[-+*/%]|==|for|if) [\w(\[]")
"""Part of a program: ``(prompt_tokens + completion_tokens)``, ``[hash(p) for p in users]``."""
_STATEMENT: Final = re.compile(r"[ \t]*+(?:if|elif|while|for|with|case|def|async|assert|return)\b")
"""A statement of a program: ``if password:`` has no value behind it."""
_LINE_ENDS: Final = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), "\n")
_VALUE_KEYS: Final = frozenset({"value", "val", "current", "plain", "plaintext", "cleartext", "content", "data"})
"""Members of an object that hold its secret, whatever it looks like."""
_OTHER_KEYS: Final = frozenset("""
type format pattern title description name id $ref label placeholder help hint message error key kind rule rules policy
min max length minlength maxlength minimum maximum writeonly readonly nullable deprecated user username login email
host port url uri path file env ref from source created updated expires expiry rotation algorithm
""".split())  # fmt: skip  # noqa: SIM905
"""Members that describe it, as in a schema."""
_LONGEST_LEAD: Final = 1_000
_MOST: Final = 5
"""How often all structures of a text read it: names may stand in the structures of others. More is a nested text
without sense, whose rest is masked."""
_LONG_WORD: Final = 16


class SecretStructure(NamedTuple):
    """A structure behind the name of a secret."""

    sign: int
    """Where the sign behind the name ends."""
    end: int
    secrets: list[tuple[int, int]]


def structures(text: str) -> Iterator[SecretStructure]:
    """Yield the structures behind the names of secrets."""
    text = text.translate(_LINE_ENDS)
    left = _MOST * len(text)
    for match in _SECTION.finditer(text):
        line = _NEXT_LINE.match(text, _end_of_comment(text, match.end()))
        found = _lines(text, line, -1, match["password"] is not None, is_section=True)
        if found is not None:
            yield SecretStructure(match.end("sign"), *found)
            left -= found[0] - match.end()
    for match in _NAMED.finditer(text):
        if _BEGINS.match(text, match.end()) is None:
            continue
        if left <= 0:
            yield SecretStructure(match.end("sign"), len(text), [(match.end(), len(text))])
            return
        found = _read(text, match, is_password=match["password"] is not None)
        if found is not None:
            yield SecretStructure(match.end("sign"), *found)
            left -= found[0] - match.end()


type _Found = tuple[int, list[tuple[int, int]]]
"""The end of a structure, and its secrets."""


def _end_of_comment(text: str, at: int) -> int:
    found = _COMMENT.match(text, at)
    return at if found is None else found.end()


def _read(text: str, name: re.Match[str], *, is_password: bool) -> _Found | None:
    at = name.end()
    for pattern in (_TAGS, _TYPE, _MAKER):
        if (before := pattern.match(text, at)) is not None:
            at = before.end()
    if text.startswith(("[", "{", "("), at):
        if text.startswith("[REDACTED", at) or _SMILE.match(text, at - 1):
            return None
        said = _SAID.match(text, at)
        if said is not None and name["sign"] == ":":
            words = said[0].casefold().strip("().!?").replace(",", " ").split()
            if said["first"] is None or "," not in said[0] or not PROSE.isdisjoint(words):
                return said.end(), []
        return _brackets(text, at, _indent_of(text, name.start()), is_password)
    block = _BLOCK.match(text, at)
    first = _NEXT_LINE.match(text, block.end() if block else _end_of_comment(text, at))
    if first is None:
        return None
    opening = _SPACE.match(text, at)
    if opening is not None and text.startswith(("[", "{"), opening.end()):
        if text.startswith("[REDACTED", opening.end()):
            return None
        return _brackets(text, opening.end(), _indent_of(text, name.start()), is_password)
    if name["sign"] == ":" and _STATEMENT.match(text, _line_of(text, name.start())):
        return first.start(), []
    return _lines(text, first, _indent_of(text, name.start()), is_password, is_block=block is not None)


def _line_of(text: str, at: int) -> int:
    begin = max(0, at - _LONGEST_LEAD)
    escaped = text.rfind("\\n", begin, at)
    return max(text.rfind("\n", begin, at) + 1, 0 if escaped < 0 else escaped + 2)


def _indent_of(text: str, at: int) -> int:
    start = _line_of(text, at)
    lead = _INDENT.match(text, start, at)
    return 0 if lead is None else lead.end() - start


def _lines(
    text: str, line: re.Match[str] | None, outer: int, is_password: bool, *, is_block: bool = False,
    is_section: bool = False,
) -> _Found | None:  # fmt: skip
    """Read the lines of a block, or the items of a list, or members and other lines further in than the name."""
    last, secrets = 0, list[tuple[int, int]]()
    while line is not None:
        inner, said = len(line["indent"]), line["line"].rstrip()
        end = line.end()
        if said:
            place = line.start("line")
            item, remark = _ITEM.fullmatch(said), _REMARK.fullmatch(said)
            if is_block:
                if inner <= outer:
                    break
                secrets += [(place, place + len(said))] if is_given(said) else []
            elif is_section and said.startswith("["):
                break
            elif remark is not None:
                if (inner <= outer and item is None) and not _goes_on(text, end, outer):
                    break
                old = _ITEM.fullmatch(remark["rest"])
                key = "#" if old is None else None
                begin = remark.start("rest") + (0 if old is None else old.start("item"))
                secrets += _secret(said[begin:], place + begin, key, is_password)
            elif (item is not None and inner >= outer - len("- ")) or inner > outer:
                begin = 0 if item is None else item.start("item")
                member = _MEMBER.fullmatch(said, begin)
                if member is None and is_section:
                    break
                key = None if member is None else member["key"]
                begin = begin if member is None else member.start("value")
                if begin >= 0 and (tags := _TAGS.match(said, begin)) is not None:
                    begin = tags.end()
                if not 0 <= begin < len(said) or _BLOCK.fullmatch(said, begin):
                    pass  # its lines follow
                elif said[begin] in "[{(" and not said.startswith("[REDACTED", begin):
                    within = _brackets(text, place + begin, inner, is_password, key)
                    end = max(end, within[0])
                    secrets += within[1]
                else:
                    trail = _TRAIL.match(said, begin)
                    until = len(said) if trail is None else trail.start("sign")
                    behind = said[until:].lstrip("# \t")
                    secrets += _secret(said[begin:until], place + begin, key, is_password)
                    secrets += _secret(behind, place + len(said) - len(behind), "#", is_password)
            else:
                break
            last = end
        line = _NEXT_LINE.match(text, end)
        if line is None and last == end and (rest := _END_OF_LINE.match(text, end)) is not None:
            line = _NEXT_LINE.match(text, rest.end())
    return (last, secrets) if last else None


def _goes_on(text: str, at: int, outer: int) -> bool:
    """Tell whether the next line is of a list whose name is as far in as ``outer``."""
    line = _NEXT_LINE.match(text, at)
    if line is None or not line["line"].strip():
        return False
    return len(line["indent"]) > outer or (
        len(line["indent"]) >= outer - len("- ") and _ITEM.fullmatch(line["line"].rstrip()) is not None
    )


def _brackets(text: str, at: int, outer: int, is_password: bool, name: str | None = None) -> _Found:
    """Read what is between brackets. ``name`` is the key of an object in front of it, if there is one.

    If they do not fit, or a word goes on behind them, all of it is a secret; if they do not end, that of a password.
    """
    depth: list[str] = []
    secrets: list[tuple[int, int]] = []
    key: str | None = None
    last, is_even = at, True
    for token in _TOKEN.finditer(text, at):
        if "," in text[last : token.start()]:
            key = None
        last = token.end()
        if token["open"]:
            depth.append(token["open"])
        elif token["close"]:
            if not any(_OPENS[each] == token["close"] for each in depth):
                is_even = False
                continue
            while _OPENS[depth.pop()] != token["close"]:
                is_even = False
            if not depth and not text.startswith(("[", "(", "{"), last):
                if not _BEHIND.match(text, last):
                    return _cut_off(text, at, outer)
                if not is_even:
                    return last, [(at + 1, last - 1)]
                return last, _listed(text, at, last, secrets)
        elif token["remark"]:
            secrets += _secret(token["remark"][2:], token.start() + 2, "#", is_password)
        elif not token["masked"] and _MAKER.match(text, token.start()) is None:
            group = "bare" if token["quote"] is None else "quoted"
            if depth[-1:] == ["{"] and (_KEY_SIGN.match(text, last) or _KEY.match(text, last - 1)):
                key = token[group].rstrip(":") or key
                continue
            begin, sign, _ = token[group].partition(":")
            if group == "bare" and sign and begin.lower() in _OTHER_KEYS:
                continue
            secrets += _secret(token[group], token.start(group), key if depth[-1:] == ["{"] else name, is_password)
    if is_password or not is_even:
        return _cut_off(text, at, outer)
    return last, secrets


def _listed(text: str, at: int, end: int, secrets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the secrets in brackets, without the names of an expression."""
    if _EXPRESSION.search(text, at, end) is None:
        return secrets
    return [(first, last) for first, last in secrets if is_mixed(text[first:last]) or text[first - 1] in "\"'`"]


def _cut_off(text: str, at: int, outer: int) -> _Found:
    """Return all lines of brackets that have no end: those that go on behind a comma, or are further in."""
    secrets: list[tuple[int, int]] = []
    begin, is_open = at + 1, True
    line = _END_OF_LINE.match(text, begin)
    while line is not None:
        said = text[begin : line.end()].rstrip()
        inner = begin + len(said) - len(said.lstrip())
        said = said.strip()
        if said.strip("[](){}\"'`\\,; ") and said.replace("[REDACTED]", "").strip("[](){}\"'`\\,; "):
            secrets.append((inner, inner + len(said)))
        is_open = not said or said.endswith((",", "[", "(", "{"))
        following = _NEXT_LINE.match(text, line.end())
        if following is None or not (is_open or len(following["indent"]) > outer or following["line"][:1] in "])}"):
            return line.end(), secrets
        begin = following.start("line")
        line = _END_OF_LINE.match(text, begin)
    return begin, secrets


def _secret(value: str, at: int, key: str | None, is_password: bool) -> Iterator[tuple[int, int]]:
    """Yield the span of a value if it is a secret. ``key`` is its name in an object; None for an item of a list."""
    word = value.rstrip().rstrip(",;")
    quotes = len(word) - len(word.lstrip("\"'`"))
    word = word[quotes:].rstrip("\"'`")
    longest = max(word.split(), key=len, default="").strip(EDGES)
    if not is_given(word):
        return
    if key is None or key.lower() in _VALUE_KEYS:
        alone = " " not in word and (is_password or len(word) >= _LONG_WORD)
        counts = alone or is_mixed(longest)
    else:
        is_other = key.lower() in _OTHER_KEYS
        counts = not is_other and (is_mixed(longest) or (is_password and key != "#" and " " not in word))
    if counts:
        yield at + quotes, at + quotes + len(word)
