"""The shapes that rule files are made of: mappings with known keys, lists, strings, each refused with its place.

Each check reports and goes on with an empty value in place of the wrong one, so one run finds everything. A value that
was refused while the YAML was read (``Broken``) is passed over in silence: its finding is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from graphweft_rules.findings import Finding, did_you_mean
from graphweft_rules.model import Place
from graphweft_rules.tree import Broken, Entry, Items, Node, Scalar, Table, plain

Entries = Mapping[str, Entry]


class Shapes:
    """Takes the tree of one file apart and collects what is wrong with it in ``findings``."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self.findings: list[Finding] = list(findings)

    def table(self, node: Node, what: str, *, required: set[str], optional: set[str]) -> Entries:
        """Return the known entries of a mapping; report missing and unknown keys."""
        if not isinstance(node, Table):
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
        """Make something of each item of a list of mappings; ``unique`` names the key that no two may share."""
        if key not in entries:
            return
        node = entries[key].value
        if not isinstance(node, Items):
            self.wrong_type(node, key, "a list, each item with a dash")
            return
        if not node.items and unique is not None:
            self.error("empty-list", f"{key} is empty: write at least one, or drop the rule", node.place)
        seen: dict[str, Place] = {}
        for item in node.items:
            yield make(item)
            entry = item.entries.get(unique) if unique is not None and isinstance(item, Table) else None
            value = plain(entry.value) if entry is not None else None
            if entry is None or not isinstance(value, str):
                continue
            first = seen.setdefault(value, entry.value.place)
            if first is not entry.value.place:
                message = f"the {unique} {value!r} stands at line {first.line} of this rule already: make it another"
                self.error(f"duplicate-{unique}", message, entry.value.place)

    def texts(self, entries: Entries, key: str, example: str) -> list[tuple[str, Place]]:
        """Return the non-empty strings of a list that may not be empty; nothing when the key is absent."""
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
        """Return a non-empty string, or an empty one when the key is absent or its value wrong."""
        return self.string(entries[key].value, key, "a string") if key in entries else ""

    def string(self, node: Node, what: str, wanted: str) -> str:
        """Return the non-empty string that the node is, or report and return an empty one."""
        if isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value.strip():
                return node.value
            self.error("bad-value", f"{what} is empty: write something, or drop it if it is optional", node.place)
        else:
            self.wrong_type(node, what, wanted)
        return ""

    def whole(self, entries: Entries, key: str, *, least: int | None = None) -> int | None:
        """Return a whole number, at least ``least``; None when the key is absent or its value wrong."""
        node = entries[key].value if key in entries else None
        if node is None or isinstance(node, Broken):
            return None
        value = plain(node)
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong_type(node, key, "a whole number" if least is None else f"a whole number from {least}")
            return None
        if least is not None and value < least:
            self.error("bad-value", f"{key} is {value}: write {least} or more, or drop it", node.place)
            return None
        return value

    def flag(self, entries: Entries, key: str) -> bool | None:
        """Return true or false; None when the key is absent or its value wrong."""
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
                return  # reported as what it is
            case Scalar(value=None):
                found = "empty"
            case Scalar():
                found = f"{node.value!r}"
            case Items():
                found = "a list"
            case Table():
                found = "a mapping"
        self.error("wrong-type", f"{what} is {found} here: it must be {wanted}", node.place)

    def error(self, code: str, message: str, place: Place) -> None:
        """Report what keeps the rules from loading."""
        self.findings.append(Finding(level="error", code=code, message=message, place=place))

    def warn(self, code: str, message: str, place: Place) -> None:
        """Report what is suspicious but loads."""
        self.findings.append(Finding(level="warning", code=code, message=message, place=place))
