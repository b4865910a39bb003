"""Stage 4, pack: facts become a block of text, without secrets and within its limits."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules.output.formats import facts_block, without_marks
from graphweft_rules.output.look_alikes import is_invisible
from graphweft_rules.output.token_count import TokenCounter, count_characters
from graphweft_workers.features.graphrag.expansion import Expansion
from graphweft_workers.features.graphrag.fact_texts import FactTexts
from graphweft_workers.features.graphrag.rows import EntityNode, Relation
from graphweft_workers.features.graphrag.safe_cypher import LONGEST, LONGEST_LABEL, LONGEST_NAME
from graphweft_workers.text.redaction import (
    REDACTED,
    is_value,
    redact,
    redact_beside,
    redact_value,
)
from graphweft_workers.text.secret_signs import hold_none_together

_NAME: Final = 120
_KIND: Final = 60
_TEXT: Final = 300
_UNSURE: Final = 200
"""Characters dropped before a cut, where part of a secret may be left."""
_JOINERS: Final = "\u200c\u200d"
"""Format characters that some scripts need."""
_MARGIN: Final = 400
"""Characters beyond the shown ones that are redacted too."""
_LABEL: Final = re.compile(rf"[^\W\d]\w{{0,{LONGEST_LABEL - 1}}}")
_EMOJI: Final = frozenset({"So", "Sm", "Sk"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsBlock:
    """A block of text, empty without facts, and its facts, one line each."""

    text: str = ""
    facts: tuple[str, ...] = ()
    complete: bool = True
    """Whether there was time for all facts."""


def pack(
    found: Expansion,
    *,
    most: int,
    max_chars: int = 8_000,
    max_tokens: int | None = None,
    count: TokenCounter = count_characters,
    until: float = math.inf,
    texts: FactTexts | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[FactsBlock | None]:
    """Yield None for each written line, some milliseconds apart, and then the block.

    The block has at most ``most`` facts, ``max_chars`` characters and ``max_tokens`` tokens: descriptions of pinned
    entities, up to a third; then relationships, nearest first; then other descriptions. It ends before the first fact
    that does not fit, and at the time ``until`` of ``clock``. Text of the graph cannot end the block, begin a line or
    bring in a secret. ``texts`` keeps the facts of earlier blocks.
    """
    facts: list[str] = []
    chars = len(_block(()))
    tokens = 0 if max_tokens is None else count(_block(()))
    complete = True
    for fact in _lines(found, most, FactTexts() if texts is None else texts):
        yield None
        if clock.monotonic() >= until:
            complete = False
            break
        if not fact:
            continue
        line = f"- {fact}\n"
        chars += len(line)
        if max_tokens is not None:
            tokens += count(line)  # per line: counting the whole text each time is quadratic
        if chars > max_chars or (max_tokens is not None and tokens > max_tokens):
            break
        facts.append(fact)
    text = _block(facts)
    while facts and max_tokens is not None and (tokens := count(text)) > max_tokens:  # more than its lines have
        del facts[min(len(facts) - 1, len(facts) * max_tokens // tokens) :]
        text = _block(facts)
    yield FactsBlock(text=text if facts else "", facts=tuple(facts), complete=complete)


def _block(facts: Iterable[str]) -> str:
    return facts_block(f"- {fact}" for fact in facts)


def _lines(found: Expansion, most: int, texts: FactTexts) -> Iterator[str]:
    """Yield each fact once; empty text for repetitions and nodes without a fact."""
    write = _Lines(texts)
    pinned = (node for node in found.pinned if node.description and node.name)
    first = map(write.described, islice(pinned, -(-most // 3)))
    known = {node.handle for node in found.pinned}
    others = (write.described(node) for node in found.nodes.values() if node.handle not in known)
    seen: set[str] = set()
    related = map(write.related, found.relations.values())
    for fact in chain(first, related, map(write.described, pinned), others):
        yield "" if fact in seen else fact
        if fact:
            seen.add(fact)
        if len(seen) == most:
            return


class _Lines:
    """Writes facts, and redacts each name, and looks at each pair of texts, once."""

    def __init__(self, texts: FactTexts) -> None:
        self._texts = texts
        self._shown: dict[tuple[str, int], str] = {}
        self._values: dict[tuple[str, str], bool] = {}

    def described(self, node: EntityNode) -> str:
        if not node.description:
            return ""
        return self._known((node.name, node.kind, node.description), partial(self._described, node))

    def related(self, relation: Relation) -> str:
        source, target = relation.source, relation.target
        texts = (source.name, source.kind, relation.type, relation.label, target.name, target.kind, relation.fact)
        return self._known(texts, partial(self._related, relation))

    def _known(self, texts: tuple[str, ...], write: Callable[[], str]) -> str:
        """Return the fact of these texts, which ``write`` returns before its parts are looked at together."""
        fact = self._texts.get(texts)
        if fact is None:
            fact = redact(write())  # two parts may form a secret together
            self._texts.keep(texts, fact)
        return fact

    def _described(self, node: EntityNode) -> str:
        whole, node = node, _bounded(node)
        safe = redact_beside(node.kind, redact_beside(node.name, redact_value(node.name, node.description)))
        text = _cut(safe, whole.description, _TEXT, LONGEST)
        return f"{self._safe(node)}: {text}" if text and self._short(node.name, _NAME) else ""

    def _related(self, relation: Relation) -> str:
        source, target = relation.source, relation.target
        said = relation.fact[: _TEXT + _MARGIN]
        # "DB password RELATED_TO hunter2!" is an assignment, too.
        label = relation.label if _LABEL.fullmatch(relation.label) else ""
        plain = hold_none_together((source.name, source.kind, label, target.name, target.kind, said))
        if not self._short(source.name, _NAME, plain=plain) or not self._short(target.name, _NAME, plain=plain):
            return ""
        if plain:
            line, safe = f"{self._titled(source)} {label or relation.type} {self._titled(target)}", said
        else:
            line, safe = self._guarded(source, label, relation.type, target, said)
        fact = _cut(safe, relation.fact, _TEXT, LONGEST)
        return f"{line}: {fact}" if fact else line

    def _guarded(self, source: EntityNode, label: str, type: str, target: EntityNode, said: str) -> tuple[str, str]:
        """Return the line of a relationship, and what it says, where parts may be secrets, alone or beside another."""
        if label != redact(label) or any(self._is_value(name, label) for name in (source.name, target.name)):
            label = ""
        line = f"{self._safe(source, target)} {label or type} {self._safe(target, source, label)}"
        safe = REDACTED if self._is_value(source.name, said) or self._is_value(label, said) else redact(said)
        for beside in (source.name, source.kind, label, target.name, target.kind) if safe else ():
            safe = redact_beside(beside, safe)
        return line, safe

    def _safe(self, node: EntityNode, other: EntityNode | None = None, label: str = "") -> str:
        name, kind = self._short(node.name, _NAME), self._short(node.kind, _KIND)
        labels = (label, node.kind, other.name if other else "")
        if any(self._is_value(each, node.name) for each in labels if each):
            name = REDACTED
        if self._is_value(node.name, node.kind):
            kind = REDACTED
        return _title(name, kind)

    def _titled(self, node: EntityNode) -> str:
        """Return the title of a node whose texts hold no secret."""
        return _title(self._short(node.name, _NAME, plain=True), self._short(node.kind, _KIND, plain=True))

    def _is_value(self, label: str, text: str) -> bool:
        found = self._values.get((label, text))
        if found is None:
            found = self._values[label, text] = is_value(label, text)
        return found

    def _short(self, text: str, most: int, *, plain: bool = False) -> str:
        """Return a text as it is shown; with ``plain`` it is known to hold no secret."""
        if not text:
            return ""
        shown = self._shown.get((text, most))
        if shown is None:
            read = text[: most + _MARGIN]
            shown = self._shown[text, most] = _cut(read if plain else redact(read), text, most, LONGEST_NAME)
        return shown


def _title(name: str, kind: str) -> str:
    return f"{name} ({kind})" if kind and kind != name else name


def _bounded(node: EntityNode) -> EntityNode:
    """Return a node with its description cut to the shown length and a margin."""
    if len(node.description) <= _TEXT + _MARGIN:
        return node
    return replace(node, description=node.description[: _TEXT + _MARGIN])


def _cut(redacted: str, text: str, most: int, longest: int) -> str:
    """Return a redacted text on one line of at most ``most`` characters; ``text`` is the original."""
    # The original was cut before redaction, or by the server, which may count in UTF-16.
    if len(text) > most + _MARGIN or (
        2 * len(text) >= longest - 3 and len(text.encode("utf-16-le", "replace")) // 2 >= longest - 3
    ):
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
    if "\ufe00" <= char <= "\ufe0f":  # a variation selector, which can smuggle text
        return unicodedata.category(before) not in _EMOJI
    return is_invisible(char) or "\U000e0100" <= char <= "\U000e01ef" or not (char.isprintable() or char.isspace())
