"""The last stage: what was found becomes a block of text, without secrets and within its bounds."""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from graphweft_rules.formats import facts_block, without_marks
from graphweft_rules.token_count import TokenCounter, count_characters
from graphweft_workers.graphrag.expand import Expansion
from graphweft_workers.graphrag.rows import Node, Relation
from graphweft_workers.graphrag.safe_cypher import LONGEST, LONGEST_LABEL, LONGEST_NAME
from graphweft_workers.graphrag.secrets import REDACTED, is_invisible, is_value, redact, redact_beside, redact_value

_NAME: Final = 120
_KIND: Final = 60
_TEXT: Final = 300
_UNSURE: Final = 200
"""Characters before the place where a text was cut, in which half a secret may stand that looks like none."""
_JOINERS: Final = "\u200c\u200d"
"""Format characters that writing needs."""
_MARGIN: Final = 400
"""Characters beyond those that are shown that go through the gate, which takes some out; the last ones do not count."""
_LABEL: Final = re.compile(rf"[^\W\d]\w{{0,{LONGEST_LABEL - 1}}}")
_EMOJI: Final = frozenset({"So", "Sm", "Sk"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A block of text, empty without facts, and the facts in it, one line each."""

    text: str = ""
    facts: tuple[str, ...] = ()
    complete: bool = True
    """Whether there was time for all that belongs in it."""


def pack(
    found: Expansion,
    *,
    most: int,
    max_chars: int = 8_000,
    max_tokens: int | None = None,
    count: TokenCounter = count_characters,
    until: float = math.inf,
) -> Packed:
    """Return at most ``most`` facts as a block of at most ``max_chars`` characters and ``max_tokens`` tokens.

    First come descriptions of what is pinned, up to a third, then relationships, the nearest first, then the other
    descriptions. A fact that does not fit is left out, and so is all behind it. What a graph holds cannot end the
    block, begin a line, or bring a secret in. From ``until`` on, as ``time.monotonic`` has it, no more is begun.
    """
    steps = packing(found, most=most, max_chars=max_chars, max_tokens=max_tokens, count=count, until=until)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            packed: Packed = end.value
            return packed


def packing(
    found: Expansion, *, most: int, max_chars: int, max_tokens: int | None, count: TokenCounter, until: float
) -> Generator[None, None, Packed]:
    """Do what ``pack`` does, and yield after each line that was written, some milliseconds apart."""
    facts: list[str] = []
    chars = len(_block(()))
    tokens = 0 if max_tokens is None else count(_block(()))
    complete = True
    for fact in _lines(found, most):
        yield
        if time.monotonic() >= until:
            complete = False
            break
        if not fact:
            continue
        line = f"- {fact}\n"
        chars += len(line)
        if max_tokens is not None:
            tokens += count(line)  # alone, for counting the whole text anew for each line takes quadratic time
        if chars > max_chars or (max_tokens is not None and tokens > max_tokens):
            break
        facts.append(fact)
    text = _block(facts)
    while facts and max_tokens is not None and (tokens := count(text)) > max_tokens:  # the whole may be more
        del facts[min(len(facts) - 1, len(facts) * max_tokens // tokens) :]
        text = _block(facts)
    return Packed(text=text if facts else "", facts=tuple(facts), complete=complete)


def _block(facts: Iterable[str]) -> str:
    return facts_block(f"- {fact}" for fact in facts)


def _lines(found: Expansion, most: int) -> Iterator[str]:
    """Yield the facts, each once, and an empty text for what is none."""
    write = _Lines()
    pinned = (node for node in found.pinned if node.description and node.name)
    first = map(write.described, islice(pinned, -(-most // 3)))
    known = {node.handle for node in found.pinned}
    others = (write.described(node) for node in found.nodes.values() if node.handle not in known)
    seen: set[str] = set()
    related = map(write.related, found.relations.values())
    for line in chain(first, related, map(write.described, pinned), others):
        fact = redact(line)  # a secret may also come of two parts that are none by themselves
        yield "" if fact in seen else fact
        if fact:
            seen.add(fact)
        if len(seen) == most:
            return


class _Lines:
    """Writes facts; the same names come again and again, so each goes through the gate once."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, int], str] = {}

    def described(self, node: Node) -> str:
        if not node.description:
            return ""
        whole, node = node, _bounded(node)
        safe = redact_beside(node.kind, redact_beside(node.name, redact_value(node.name, node.description)))
        text = _cut(safe, whole.description, _TEXT, LONGEST)
        return f"{self._titled(node)}: {text}" if text and self._short(node.name, _NAME) else ""

    def related(self, relation: Relation) -> str:
        source, target = _bounded(relation.source), _bounded(relation.target)
        said = relation.fact[: _TEXT + _MARGIN]
        if not self._short(source.name, _NAME) or not self._short(target.name, _NAME):
            return ""
        # "DB password RELATED_TO hunter2!" is as good as an assignment.
        label = relation.label if _LABEL.fullmatch(relation.label) else ""
        if label != redact(label) or any(is_value(name, label) for name in (source.name, target.name)):
            label = ""
        line = f"{self._titled(source, target)} {label or relation.type} {self._titled(target, source, label)}"
        safe = REDACTED if is_value(source.name, said) or is_value(label, said) else redact(said)
        for beside in (source.name, source.kind, label, target.name, target.kind) if safe else ():
            safe = redact_beside(beside, safe)
        fact = _cut(safe, relation.fact, _TEXT, LONGEST)
        return f"{line}: {fact}" if fact else line

    def _titled(self, node: Node, other: Node | None = None, label: str = "") -> str:
        name, kind = self._short(node.name, _NAME), self._short(node.kind, _KIND)
        labels = (label, node.kind, other.name if other else "")
        if any(is_value(each, node.name) for each in labels if each):
            name = REDACTED
        if is_value(node.name, node.kind):
            kind = REDACTED
        return f"{name} ({kind})" if kind and kind != name else name

    def _short(self, text: str, most: int) -> str:
        if not text:
            return ""
        if (text, most) not in self._shown:
            self._shown[text, most] = _cut(redact(text[: most + _MARGIN]), text, most, LONGEST_NAME)
        return self._shown[text, most]


def _bounded(node: Node) -> Node:
    """Return a node of whose texts only so much is there as can be shown, and a margin."""
    if len(node.description) <= _TEXT + _MARGIN:
        return node
    return replace(node, description=node.description[: _TEXT + _MARGIN])


def _cut(redacted: str, text: str, most: int, longest: int) -> str:
    """Return a text that is in order on one line of at most ``most`` characters; ``text`` is what it was."""
    # The server may have cut it, some count in UTF-16; or it was cut before the gate.
    if len(text) > most + _MARGIN or len(text.encode("utf-16-le", "replace")) // 2 >= longest - 3:
        redacted = redacted[: max(0, len(redacted) - _UNSURE)]
    if not (redacted.isascii() and redacted.isprintable()):
        redacted = "".join(
            char
            for before, char in zip("\0" + redacted, redacted, strict=False)
            if char in _JOINERS or not _is_hidden(char, before)
        )
    line = without_marks(" ".join(redacted.split()))
    if len(line) <= most:
        return line
    cut = line[: most - 1]
    opened = cut.rfind("[")
    if opened >= 0 and REDACTED.startswith(cut[opened:]):
        cut = cut[:opened]
    return cut.rstrip() + "\u2026"


def _is_hidden(char: str, before: str) -> bool:
    if "\ufe00" <= char <= "\ufe0f":  # it chooses how an emoji looks, and by more of them texts are smuggled in
        return unicodedata.category(before) not in _EMOJI
    return is_invisible(char) or "\U000e0100" <= char <= "\U000e01ef" or not (char.isprintable() or char.isspace())
