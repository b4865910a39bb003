"""Checks of the shapes in rule files: mappings with known keys, lists, strings and numbers.

A check reports a wrong value and continues with an empty one, so one run finds everything. It skips ``Broken`` values,
which have a finding already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from graphweft_rules.files.findings import Finding, did_you_mean
from graphweft_rules.files.model import Place
from graphweft_rules.files.tree import Broken, Items, KeyTable, Node, Scalar, TableEntry, plain

Entries = Mapping[str, TableEntry]


class Shapes:
    """Reads the tree of one file and collects the problems in ``findings``."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self.findings: list[Finding] = list(findings)

    def table(self, node: Node, what: str, *, required: set[str], optional: set[str]) -> Entries:
        """Return the known entries of a mapping; report missing and unknown keys."""
        if not isinstance(node, KeyTable):
            self.wrong_type(node, what, "a mapping of " + ", ".join(sorted(required | optional)))
            return {}
        for key in sorted(required - node.entries.keys()):
            self.error("missing-key", f"{what} needs the key {key!r}", node.place)
        known = required | optional
        for key, entry in node.entries.items():
            if key not in known:
                near = did_you_mean(key, known - node.entries.keys())
                message = f"{what} has no key {key!r}{near}: it may have {', '.join(sorted(known))}"
                self.error("unknown-key", message, entry.key)
        return {key: entry for key, entry in node.entries.items() if key in known}

    def each[T](
        self, entries: Entries, key: str, make: Callable[[Node], T], *, unique: str | None = None
    ) -> Iterable[T]:
        """Yield ``make(item)`` for each item of a list; values of the key ``unique`` must differ."""
        if key not in entries:
            return
        node = entries[key].value
        if not isinstance(node, Items):
            self.wrong_type(node, key, "a list, each item with a dash")
            return
        if not node.items and unique is not None:
            self.error("empty-list", f"{key} is empty: write at least one, or remove the rule", node.place)
        seen: dict[str, Place] = {}
        for item in node.items:
            yield make(item)
            entry = item.entries.get(unique) if unique is not None and isinstance(item, KeyTable) else None
            value = plain(entry.value) if entry is not None else None
            if entry is None or not isinstance(value, str):
                continue
            first = seen.setdefault(value, entry.value.place)
            if first is not entry.value.place:
                message = f"the {unique} {value!r} is used at line {first.line} of this rule already: choose another"
                self.error(f"duplicate-{unique}", message, entry.value.place)

    def texts(self, entries: Entries, key: str, example: str) -> list[tuple[str, Place]]:
        """Return the strings of a non-empty list of non-empty strings; nothing if the key is absent."""
        if key not in entries:
            return []
        node = entries[key].value
        if not isinstance(node, Items):
            self.wrong_type(node, key, f"a list, {example}")
            return []
        if not node.items:
            self.error("empty-list", f"{key} is empty and matches nothing: write {example}", node.place)
        return [(text, item.place) for item in node.items if (text := self.string(item, key, "a list of strings"))]

    def text(self, entries: Entries, key: str) -> str:
        """Return a non-empty string; an empty one if the key is absent or its value wrong."""
        return self.string(entries[key].value, key, "a string") if key in entries else ""

    def string(self, node: Node, what: str, wanted: str) -> str:
        """Return a non-empty string; report any other node and return an empty string."""
        if isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value.strip():
                return node.value
            self.error("bad-value", f"{what} is empty: write a value, or remove the key if it is optional", node.place)
        else:
            self.wrong_type(node, what, wanted)
        return ""

    def whole(self, entries: Entries, key: str, *, least: int | None = None) -> int | None:
        """Return a whole number, at least ``least``; None if the key is absent or its value wrong."""
        node = entries[key].value if key in entries else None
        if node is None or isinstance(node, Broken):
            return None
        value = plain(node)
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong_type(node, key, "a whole number" if least is None else f"a whole number from {least}")
            return None
        if least is not None and value < least:
            self.error("bad-value", f"{key} is {value}: write {least} or more, or remove the key", node.place)
            return None
        return value

    def flag(self, entries: Entries, key: str) -> bool | None:
        """Return true or false; None if the key is absent or its value wrong."""
        node = entries[key].value if key in entries else None
        if node is None or isinstance(node, Broken):
            return None
        value = plain(node)
        if not isinstance(value, bool):
            self.wrong_type(node, key, "true or false")
            return None
        return value

    def wrong_type(self, node: Node, what: str, wanted: str) -> None:
        """Report that a value has the wrong shape."""
        match node:
            case Broken():
                return  # reported already
            case Scalar(value=None):
                found = "empty"
            case Scalar():
                found = f"{node.value!r}"
            case Items():
                found = "a list"
            case KeyTable():
                found = "a mapping"
        self.error("wrong-type", f"{what} is {found}: it must be {wanted}", node.place)

    def error(self, code: str, message: str, place: Place) -> None:
        """Report an error, which keeps the rules from loading."""
        self.findings.append(Finding(level="error", code=code, message=message, place=place))

    def warn(self, code: str, message: str, place: Place) -> None:
        """Report a warning."""
        self.findings.append(Finding(level="warning", code=code, message=message, place=place))
