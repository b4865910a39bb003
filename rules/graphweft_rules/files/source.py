"""Strict YAML with the place of every key and value.

PyYAML itself is too lenient for handwritten rules: a bare ``on:`` becomes the key ``True``, the second of two
equal keys wins silently, and ``12:30`` becomes 750. This module resolves PyYAML's nodes itself and refuses everything
that YAML 1.1 and 1.2 read differently. It reports all findings of a file at once.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, override

import yaml

from graphweft_rules.files.file_bytes import MAX_BYTES
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.model import Place
from graphweft_rules.files.tree import Broken, Items, KeyTable, Node, Scalar, TableEntry

_MAX_DEPTH: Final = 64
"""Limit of levels, because later code recurses; rules need six."""
_MAX_NODES: Final = 50_000
"""Limit of values with aliases expanded: nested aliases grow exponentially."""
_INT64: Final = range(-(2**63), 2**63)
"""The integers of a graph."""

_STANDARD: Final = "tag:yaml.org,2002:"
_STR, _INT, _FLOAT, _BOOL, _NULL, _SEQ, _MAP = (
    _STANDARD + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map")
)
_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    _NULL: re.compile(r"(?:~|null|Null|NULL|)\Z"),
    _BOOL: re.compile(r"(?:true|false)\Z", re.IGNORECASE),
    _INT: re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+)\Z"),
    _FLOAT: re.compile(r"(?:[-+]?[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?\Z"),
    # Some YAML readers take these for other types than text. Tried last, after the valid forms.
    "!switch": re.compile(r"(?:yes|no|on|off)\Z", re.IGNORECASE),
    "!infinite": re.compile(r"[-+]?\.(?:inf|nan)\Z", re.IGNORECASE),
    "!number": re.compile(
        r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-f_]+"
        r"|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
        r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:e[-+]?[0-9]+)?)\Z",
        re.IGNORECASE,
    ),
    "!merge": re.compile(r"<<\Z"),
}
_REFUSED: Final[Mapping[str, str]] = {
    "!switch": "is a boolean to one YAML reader and text to the next: write true or false, or quote it",
    "!infinite": "is a number that JSON and the graph cannot hold: remove it, or quote it if it is text",
    "!number": "is read differently by YAML 1.1 and 1.2: write plain decimal digits, or quote it if it is text",
    "!merge": "merges mappings, which rule files do not support: write the keys out, or use 'extends'",
}
_SCALARS: Final[Mapping[str, Callable[[str], str | int | float | bool | None]]] = {
    _STR: str,
    _INT: lambda text: int(text, 16 if text.startswith("0x") else 10),
    _FLOAT: float,
    _BOOL: lambda text: text.lower() == "true",
    _NULL: lambda _: None,
}
_LINE_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what PyYAML's marks count as a line
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _TooManyNodes(Exception):
    pass


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {None: list(_PATTERNS.items())}  # noqa: RUF012 - PyYAML's own attribute
    nodes = 0

    @override
    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count nodes as they are read: a node takes a kilobyte."""
        self.nodes += 1
        if self.nodes > 2 * _MAX_NODES:  # keys are nodes too
            raise _TooManyNodes
        return super().compose_node(parent, index)


def parse(data: bytes, file: str) -> tuple[Node, tuple[Finding, ...]]:
    """Return the root of a YAML document and the findings about its YAML. Never raises on content.

    An empty file is an empty ``KeyTable``. A value with a finding is ``Broken``; the value of an unquoted key is kept.
    """
    if len(data) > MAX_BYTES:  # the limit of values bounds what reading takes; this one, what a single value takes
        message = f"more than {MAX_BYTES:,} bytes: split the file"
        place = Place(file=file)
        return Broken(place=place), (Finding(level="error", code="yaml-too-large", message=message, place=place),)
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = _LINE_BREAK.split(data[: error.start].decode())
        place = Place(file=file, line=len(before), column=len(before[-1]) + 1)
        message = f"byte {data[error.start]:#04x} is not UTF-8: save the file as UTF-8"
        return Broken(place=place), (Finding(level="error", code="yaml-encoding", message=message, place=place),)
    reading = _Reading(text, file)
    return reading.root(), tuple(reading.findings)


class _Reading:
    """One pass over one text."""

    def __init__(self, text: str, file: str) -> None:
        self.findings: list[Finding] = []
        self._text = text
        self._lines = _LINE_BREAK.split(text)
        self._file = file
        self._open: set[int] = set()  # collections around the current node, by identity
        self._nodes = 0

    def root(self) -> Node:
        top = Place(file=self._file)
        try:
            loader: Any = _Loader(self._text)  # the stubs leave half of its methods untyped
        except yaml.reader.ReaderError as error:
            before = _LINE_BREAK.split(self._text[: error.position])
            place = Place(file=self._file, line=len(before), column=len(before[-1]) + 1)
            return self._refuse("yaml-encoding", f"the character {_code_point(error)} is not allowed in YAML", place)
        node: yaml.Node | None = None
        try:
            node = loader.get_node() if loader.check_node() else None
            if loader.check_node():
                message = "a second document starts here: split the file, because a rule file holds one"
                self._refuse("yaml-documents", message, self._place(loader.peek_event().start_mark))
        except yaml.MarkedYAMLError as error:
            broken = self._syntax(error)
            if node is None:
                return broken
        except RecursionError:
            return self._too_deep(self._place(loader.get_mark()))
        except _TooManyNodes:
            return self._too_large(self._place(loader.get_mark()))
        if node is None or (node.tag == _NULL and node.value == ""):
            return KeyTable(entries={}, place=top)
        return self._node(node, depth=1)

    def _node(self, node: yaml.Node, depth: int) -> Node:
        place = self._place(node.start_mark)
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            if self._nodes == _MAX_NODES + 1:
                self._too_large(place)
            return Broken(place=place)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if id(node) in self._open:
            return self._refuse("yaml-alias", "an alias refers to itself here: write the value out", place)
        if depth > _MAX_DEPTH:
            return self._too_deep(place)
        if node.tag != (_MAP if isinstance(node, yaml.MappingNode) else _SEQ):
            return self._unknown_tag(node, place)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._table(node, place, depth)
            return Items(items=tuple(self._node(item, depth + 1) for item in node.value), place=place)
        finally:
            self._open.remove(id(node))

    def _table(self, node: yaml.MappingNode, place: Place, depth: int) -> KeyTable:
        entries: dict[str, TableEntry] = {}
        for key_node, value_node in node.value:
            key_place = self._place(key_node.start_mark)
            key = self._key(key_node, key_place)
            value = self._node(value_node, depth + 1)
            if key is None:
                continue
            if key in entries:
                first = entries[key].key
                message = f"the key {key!r} is used at line {first.line} of this mapping already: keep one of them"
                self._refuse("repeated-key", message, key_place)
            else:
                entries[key] = TableEntry(key=key_place, value=value)
        return KeyTable(entries=entries, place=place)

    def _key(self, node: yaml.Node, place: Place) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse("unquoted-key", "a list or mapping cannot be a key: write a string", place)
            return None
        if node.tag == "!merge":
            self._refuse("yaml-merge", f"{node.value!r} {_REFUSED['!merge']}", place)
            return None
        if node.tag != _STR and (node.tag in _SCALARS or node.tag in _REFUSED):
            message = f'the bare key {node.value!r} is not a string to every YAML reader: quote it, "{node.value}":'
            self._refuse("unquoted-key", message, place)
            return str(node.value)
        scalar = self._scalar(node, place)
        return scalar.value if isinstance(scalar, Scalar) and isinstance(scalar.value, str) else None

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Scalar | Broken:
        text: str = node.value
        if node.tag in _REFUSED:
            return self._refuse("ambiguous-value", f"{text!r} {_REFUSED[node.tag]}", place)
        convert = _SCALARS.get(node.tag)
        if convert is None:
            return self._unknown_tag(node, place)
        if node.tag != _STR and not _PATTERNS[node.tag].match(text):  # only an explicit tag comes here
            return self._refuse("yaml-tag", f"{text!r} does not fit its tag: remove the tag", place)
        if node.tag == _INT and len(text) > 20:  # int() refuses thousands of digits
            return self._out_of_range(text, place)
        value = convert(text)
        if isinstance(value, int) and value not in _INT64:
            return self._out_of_range(text, place)
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return self._out_of_range(text, place)
        if isinstance(value, str) and _SURROGATE.search(value):
            message = "half of a surrogate pair is not a character: write the character itself, or \\U and eight digits"
            return self._refuse("yaml-encoding", message, place)
        if not isinstance(value, str):
            return Scalar(value=value, place=place)
        return Scalar(value=value, place=place, text=self._origin(node), joined=self._joined(node))

    def _joined(self, node: yaml.ScalarNode) -> tuple[str, ...]:
        if node.style == "|" or node.end_mark.line == node.start_mark.line:
            return ()
        lines = self._lines[node.start_mark.line + (node.style == ">") : node.end_mark.line + 1]
        if node.style in {"'", '"'}:
            lines = [*lines[:-1], self._lines[node.end_mark.line][: node.end_mark.column - 1]]
        if node.style == "'":
            lines = [line.replace("''", "'") for line in lines]
        return tuple(line.rstrip() for line in lines)

    def _origin(self, node: yaml.ScalarNode) -> Place | None:
        """Return the place of the first character of a string; None if the string is folded or escaped."""
        mark, text = node.start_mark, str(node.value)
        if node.style == "|":
            for offset, line in enumerate(_LINE_BREAK.split(text)):
                number = mark.line + 1 + offset  # the content starts on the line after the bar
                if line and number < len(self._lines) and self._lines[number].endswith(line):
                    return Place(file=self._file, line=mark.line + 2, column=len(self._lines[number]) - len(line) + 1)
                if line:
                    break
            return None
        written = self._text[mark.index : node.end_mark.index]
        quote = 1 if node.style in {"'", '"'} else 0
        exact = written[quote : len(written) - quote] == text
        return Place(file=self._file, line=mark.line + 1, column=mark.column + 1 + quote) if exact else None

    def _syntax(self, error: yaml.MarkedYAMLError) -> Broken:
        what = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "check the indentation and the quotes here and on the line before"
        mark = error.problem_mark or error.context_mark
        if error.context_mark is not None and self._text.startswith("*", error.context_mark.index):
            mark = error.context_mark  # PyYAML reports the character after the star
        if mark is None:
            return self._refuse("yaml-syntax", f"{what}: {hint}", Place(file=self._file))
        if self._text.startswith("\t", mark.index):
            hint = "indent with spaces, not with tabs"
        elif self._text.startswith("*", mark.index):
            hint = 'a value that starts with * needs quotes, "*"'
        elif error.problem == "mapping values are not allowed here":
            hint = "quote a text that holds ': ', or write it as a block under '|', indented; else " + hint
        elif error.context == "while scanning a simple key":
            hint = "write a text of several lines under '|', indented deeper than its key; else " + hint
        return self._refuse("yaml-syntax", f"{what}: {hint}", self._place(mark))

    def _unknown_tag(self, node: yaml.Node, place: Place) -> Broken:
        tag = "!!" + node.tag.removeprefix(_STANDARD) if node.tag.startswith(_STANDARD) else node.tag
        return self._refuse(
            "yaml-tag", f"the tag {tag!r} is not allowed: rules hold strings, numbers, lists, maps", place
        )

    def _too_large(self, place: Place) -> Broken:
        return self._refuse(
            "yaml-too-large", f"more than {_MAX_NODES} values: split the file, use fewer aliases", place
        )

    def _too_deep(self, place: Place) -> Broken:
        return self._refuse("yaml-too-deep", f"more than {_MAX_DEPTH} levels: use fewer levels", place)

    def _out_of_range(self, text: str, place: Place) -> Broken:
        shown = text if len(text) <= 24 else text[:20] + "..."
        return self._refuse("ambiguous-value", f"{shown!r} does not fit into 64 bits: quote it if it is text", place)

    def _refuse(self, code: str, message: str, place: Place) -> Broken:
        self.findings.append(Finding(level="error", code=code, message=message, place=place))
        return Broken(place=place)

    def _place(self, mark: yaml.Mark) -> Place:
        return Place(file=self._file, line=mark.line + 1, column=mark.column + 1)


def _code_point(error: yaml.reader.ReaderError) -> str:
    character = error.character
    return f"U+{ord(character) if isinstance(character, str) else int(character):04X}"
