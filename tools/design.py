"""Rules of design that no linter knows: ``python -m tools.design`` is part of ``make check``.

- A protocol has at most ``MOST_METHODS`` methods, inherited ones too: one object must fulfil it whole.
- No two public classes of the five packages have one name.
- Names have no word for which the glossary has another one.

Nothing here counts lines: a limit of lines makes code dense, not small.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDERS: Final = ("contracts", "rules", "client", "runtimes", "workers")
MOST_METHODS: Final = 12
WORDS: Final[Mapping[str, str]] = {
    "asker": "requester",
    "away": "unavailable",
    "buried": "dead letter",
    "bury": "dead letter",
    "displaced": "revoked, fenced",
    "footprint": "read/write set",
    "gate": "limiter",
    "heed": "count",
    "lane": "queue",
    "lanes": "queues",
    "owning": "lease",
    "stretch": "batch",
    "told": "dead letter",
}
"""Words that are no names here, and what the glossary calls the thing: those that mean nothing else in this code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A class or a function of a module."""

    path: Path
    line: int
    name: str
    bases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    is_class: bool = False

    @property
    def place(self) -> str:
        """Where it is, as editors open it."""
        return f"{self.path}:{self.line}"


def definitions(path: Path, text: str) -> list[Definition]:
    """Return the classes and functions of a module, nested ones too."""
    found: list[Definition] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = tuple(re.split(r"[\[(]", ast.unparse(base))[0].rpartition(".")[2] for base in node.bases)
            methods = tuple(each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found.append(
                Definition(path=path, line=node.lineno, name=node.name, bases=bases, methods=methods, is_class=True)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(Definition(path=path, line=node.lineno, name=node.name))
    return found


def faults(found: Sequence[Definition]) -> Iterator[str]:
    """Yield what breaks a rule, each with its place and what to do."""
    classes: dict[str, list[Definition]] = defaultdict(list)
    for each in found:
        if each.is_class:
            classes[each.name].append(each)
    yield from _large_protocols(classes)
    for name, same in sorted(classes.items()):
        if len(same) > 1 and not name.startswith("_"):
            places = ", ".join(each.place for each in same)
            yield f"{places}: several public classes are called {name}: give each a name of its own"
    for each in found:
        yield from _words(each.place, each.name)
    for path in sorted({each.path for each in found}):
        yield from _words(str(path), path.stem)


def _large_protocols(classes: Mapping[str, Sequence[Definition]]) -> Iterator[str]:
    for each, *_ in classes.values():
        if "Protocol" not in each.bases:
            continue
        methods = _all_methods(each, classes)
        if len(methods) > MOST_METHODS:
            yield (
                f"{each.place}: the protocol {each.name} has {len(methods)} methods, and more than {MOST_METHODS} are "
                "too much for one object: divide it by who calls them"
            )


def _all_methods(protocol: Definition, classes: Mapping[str, Sequence[Definition]]) -> set[str]:
    methods = set(protocol.methods)
    for base in protocol.bases:
        for each in classes.get(base, ()) if base != "Protocol" else ():
            methods |= _all_methods(each, classes)
    return methods


def _words(place: str, name: str) -> Iterator[str]:
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
        if better := WORDS.get(word.lower()):
            yield f"{place}: {name} says {word!r}: the glossary calls it {better!r}"


def main() -> int:
    """Print all faults; return 1 if there are any."""
    paths = [path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))]
    found = [each for path in paths for each in definitions(path, path.read_text("utf-8"))]
    lines = list(faults(found))
    print("\n".join(lines) or f"{len(found):,} definitions follow the rules of design")  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
