"""Reads the tree of a file by the forms of its format, and collects what is wrong.

A check reports a wrong value and goes on without it, so one run finds everything. It skips ``Broken`` values, which
have a finding already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from graphweft_contracts.nearest import nearest
from graphweft_contracts.wire import did_you_mean
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.forms import FlagKey, Form, Key, ListKey, NumberKey, TextKey
from graphweft_rules.files.model import Place
from graphweft_rules.files.tree import Broken, Items, KeyTable, Node, Scalar, TableEntry, plain

_STRINGS: Final = "a list of strings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a mapping of a file has under the keys of its form."""

    place: Place
    """Of the mapping."""
    entries: dict[str, TableEntry]
    """The keys that the form knows, also those with a wrong value."""
    right: dict[str, Any]
    """By key: a text, number or flag; for a list the texts with their places, or the items if these may be mappings."""

    def __contains__(self, key: str) -> bool:
        """Tell whether the key is there, whatever its value."""
        return key in self.entries

    def text(self, key: str) -> str:
        """Return a text; an empty one if the key is absent or its value wrong."""
        return str(self.right.get(key, ""))

    def texts(self, key: str) -> Sequence[tuple[str, Place]]:
        """Return a list of texts with their places; an empty one if the key is absent or its value wrong."""
        return list(self.right.get(key, ()))

    def items(self, key: str) -> Sequence[Node]:
        """Return the items of a list that may have mappings; none if the key is absent or its value wrong."""
        return list(self.right.get(key, ()))

    def whole(self, key: str) -> int | None:
        """Return a number; None if the key is absent or its value wrong."""
        return self.right.get(key)

    def find(self, key: str) -> Node | None:
        """Return the value of a key as it is; None if the key is absent."""
        return self.entries[key].value if key in self.entries else None

    def place_of(self, key: str) -> Place:
        """Return the place of a value; that of the mapping if the key is absent."""
        return self.entries[key].value.place if key in self.entries else self.place


class FormReader:
    """Reads the tree of one file and collects the problems in ``findings``."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self.findings: list[Finding] = list(findings)

    def table(self, node: Node, form: Form) -> Values:
        """Return what a mapping has; report wrong keys, and wrong texts, numbers, flags and lists."""
        if not isinstance(node, KeyTable):
            self.wrong_type(node, form.name, "a mapping of " + ", ".join(sorted(form.keys)))
            return Values(place=node.place, entries={}, right={})
        known = {key: entry for key, entry in node.entries.items() if key in form.keys}
        meant: set[str] = set()
        """The right names of misspelt keys: they are not reported as missing too."""
        for key, entry in node.entries.items():
            if key not in known:
                near = nearest(key, form.keys.keys() - known.keys())
                meant |= {near} if near else set()
                hint = f" (did you mean {near!r}?)" if near else ""
                message = f"{form.name} has no key {key!r}{hint}: it may have {', '.join(sorted(form.keys))}"
                self.error("unknown-key", message, entry.key)
        for key in sorted(form.required - node.entries.keys() - meant):
            self.error("missing-key", f"{form.name} needs the key {key!r}", node.place)
        self._combined(node, form, known, meant)
        right = {key: self._right(key, form.keys[key], entry.value) for key, entry in known.items()}
        return Values(
            place=node.place, entries=known, right={key: value for key, value in right.items() if value is not None}
        )

    def _combined(self, node: Node, form: Form, known: dict[str, TableEntry], meant: Set[str]) -> None:
        """Report keys that are missing beside others, or that others forbid."""
        chosen = [key for key in known if key in form.one_of]
        if form.one_of and not chosen and meant.isdisjoint(form.one_of):
            self.error("missing-key", f"{form.name} needs one of the keys {_and(form.one_of)}", node.place)
        if form.any_of and (known.keys() | meant).isdisjoint(form.any_of):
            self.error("missing-key", f"{form.name} needs one of {', '.join(form.any_of)}", node.place)
        for key in chosen[1:]:
            message = f"{form.name} has only one of {_and(form.one_of)}: write several, or remove {key!r}"
            self.error("conflicting-keys", message, known[key].key)
        for key, other in form.needs.items():
            if key in known and other not in known and (chosen or not form.one_of):
                self.error("conflicting-keys", f"{key!r} goes with {other!r} only: remove it", known[key].key)

    def _right(self, key: str, of: Key, node: Node) -> Any:
        """Return a value that needs no other reader, and None for a wrong one, which is reported."""
        match of:
            case TextKey():
                return self._text(key, of, node) or None
            case NumberKey():
                return self._whole(key, of, node)
            case FlagKey():
                return self._flag(key, node)
            case ListKey():
                return self._items(key, of, node)
            case _:
                return None

    def _text(self, key: str, of: TextKey, node: Node) -> str:
        text = self.string(node, key, of.wanted or "a string")
        if not text or not of.names or text in of.names:
            return text
        near = did_you_mean(text, of.names)
        self.error("bad-value", f"the {key} {text!r} is unknown{near}: write one of {', '.join(of.names)}", node.place)
        return ""

    def _whole(self, key: str, of: NumberKey, node: Node) -> int | None:
        value = None if isinstance(node, Broken) else plain(node)
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong_type(node, key, "a whole number" if of.least is None else f"a whole number from {of.least}")
            return None
        if (of.least is not None and value < of.least) or (of.most is not None and value > of.most):
            bounds = f"at least {of.least}" + ("" if of.most is None else f", and at most {of.most}")
            self.error("bad-value", f"{key} must be {bounds}", node.place)
            return None
        return value

    def _flag(self, key: str, node: Node) -> bool | None:
        value = None if isinstance(node, Broken) else plain(node)
        if not isinstance(value, bool):
            self.wrong_type(node, key, "true or false")
            return None
        return value

    def _items(self, key: str, of: ListKey, node: Node) -> Sequence[Any] | None:
        are_texts = of.text is not None and of.form is None
        if of.alone and isinstance(node, Scalar):
            text = self.string(node, key, of.wanted)
            return ([(text, node.place)] if are_texts else [node]) if text else None
        if not isinstance(node, Items):
            self.wrong_type(node, key, of.wanted or "a list, each item with a dash")
            return None
        if not node.items and not of.may_be_empty:
            self.error("empty-list", f"{key} is empty: write at least one", node.place)
        if of.text is None or of.form is not None:
            return node.items
        wanted = of.text.wanted or _STRINGS
        return [(text, item.place) for item in node.items if (text := self.string(item, key, wanted))]

    def unique(self, items: Iterable[Node], key: str, what: str) -> None:
        """Report mappings of a list that have the same text under a key; ``what`` contains the list."""
        seen: dict[str, Place] = {}
        for item in items:
            entry = item.entries.get(key) if isinstance(item, KeyTable) else None
            value = plain(entry.value) if entry is not None else None
            if entry is None or not isinstance(value, str):
                continue
            first = seen.setdefault(value, entry.value.place)
            if first is not entry.value.place:
                message = f"the {key} {value!r} is used at line {first.line} of {what} already: choose another"
                self.error(f"duplicate-{key}", message, entry.value.place)

    def string(self, node: Node, what: str, wanted: str) -> str:
        """Return a non-empty string; report any other node and return an empty string."""
        if isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value.strip():
                return node.value
            self.error("bad-value", f"{what} is empty: write a value, or remove the key if it is optional", node.place)
        else:
            self.wrong_type(node, what, wanted)
        return ""

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


def _and(names: Sequence[str]) -> str:
    quoted = [f"{name!r}" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"
