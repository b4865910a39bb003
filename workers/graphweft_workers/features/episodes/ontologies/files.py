"""Ontology files: one YAML file each, named by its schema id.

::

    entity_types:
      Person: A human being.
      Secret: A password or key.
    edge_types:
      OWNS: Is responsible for.
    edge_type_map:
      - source: [Person]
        target: [Entity]
        edges: [OWNS]
    edge_rules:
      - type: OWNS
        single_valued: true
    predicate_rules:
      - predicate: has boss
        depends_on: works for
    excluded_entity_types: [Secret]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphweft_contracts.episodes import ANY_TYPE, TYPE_PATTERN
from graphweft_contracts.wire import did_you_mean
from graphweft_rules.files.file_bytes import file_bytes
from graphweft_rules.files.findings import Finding, RulesError, errors, ordered
from graphweft_rules.files.form_reader import FormReader, Values
from graphweft_rules.files.loader import FILE_NAME
from graphweft_rules.files.model import Place
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import KeyTable, Node, Scalar
from graphweft_workers.features.edge_rules import LEVELS, NO_RULE, EdgeRule, level_of
from graphweft_workers.features.episodes.ontologies.form import BETWEEN, EDGE_RULE, ONTOLOGY, PREDICATE_RULE
from graphweft_workers.features.episodes.ontologies.ontology import Ontology, type_model
from graphweft_workers.features.episodes.ontologies.registry import BUILT_IN, Ontologies
from graphweft_workers.features.predicates import PREDICATES, is_known, is_single_valued

FOLDER: Final = "ontologies"
"""Name of the folder of ontologies, beside the folder of workflows."""
_ID: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TYPE: Final = re.compile(TYPE_PATTERN)
_SUFFIXES: Final = (".yaml", ".yml")
_MISTAKEN: Final = (*_SUFFIXES, ".json", ".toml")
"""Suffixes, in any case, of files that are probably meant as ontologies."""
_IN_A_NAME: Final = "a letter, then letters, digits and underscores, 64 at most"

type _Types = Mapping[str, str]
"""Name -> description."""


def load_ontologies(folder: Path) -> Ontologies:
    """Return the built-in ontologies and those of a folder, if it exists.

    Raises ``RulesError`` with the findings of all files if one is an error.
    """
    read = [_read(path) for path in ontology_files(folder)] if folder.exists() else []
    findings = [finding for each in read for finding in each.findings] + _several(read)
    if errors(findings):
        raise RulesError(findings)
    return Ontologies(each.ontology for each in read if each.ontology is not None)


def lint_ontologies(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings in ontologies, by file, line and column; a folder means its YAML files.

    Never raises because of content. ``load_ontologies`` refuses exactly the files with error-level findings.
    """
    findings: list[Finding] = []
    for path in paths:
        read = [_read(file) for file in (ontology_files(path) if path.is_dir() else [path])]
        findings += [finding for each in read for finding in each.findings] + _several(read)
        if path.is_dir():
            findings.extend(_ignored(path))
    return list(ordered(findings))


def apart(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Split paths into those for the linter of rules, and ontologies for ``lint_ontologies``.

    Ontologies are folders named ``ontologies``, and files in them: given, or beside or below a given folder.
    """
    rules: list[Path] = []
    found: dict[Path, Path] = {}
    for path in paths:
        if _holds_ontologies(path) or (path.suffix in _SUFFIXES and _holds_ontologies(path.parent)):
            found.setdefault(path.resolve(), path)
            continue
        rules.append(path)
        if path.is_dir():
            beside = [] if (path / FILE_NAME).exists() else [path.parent / FOLDER]
            for folder in (*beside, *sorted(path.rglob(FOLDER))):
                hidden = any(part.startswith(".") for part in folder.relative_to(path.parent).parts)
                if _holds_ontologies(folder) and not hidden:
                    found.setdefault(folder.resolve(), folder)
    return rules, list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a file has."""

    ontology: Ontology | None
    findings: tuple[Finding, ...]
    predicate_rules: Place | None = None


def read_ontology(data: bytes, path: Path) -> tuple[Ontology | None, tuple[Finding, ...]]:
    """Return the ontology in the content of a file, None if a finding is an error; and the findings."""
    found = _read_data(data, path)
    return found.ontology, found.findings


def _several(read: Iterable[_Read]) -> list[Finding]:
    """Return errors about rules of predicates in more than one file: they could contradict each other."""
    first, *others = [each.predicate_rules for each in read if each.predicate_rules is not None] or [Place(file="")]
    return [
        Finding(
            level="error",
            code="duplicate-name",
            message=f"{first.file} has predicate_rules, too: write them all in one file",
            place=place,
        )
        for place in others
    ]


def _read_data(data: bytes, path: Path) -> _Read:
    root, findings = parse(data, str(path))
    checks = _Checks(findings)
    checks.schema_id(path)
    values = checks.table(root, ONTOLOGY)
    entities, edges = checks.types(values, "entity_types"), checks.types(values, "edge_types")
    between = checks.edge_type_map(values, entities, edges)
    rules = checks.edge_rules(values, edges)
    predicates = checks.predicate_rules(values)
    excluded = checks.names(values, "excluded_entity_types", entities, ANY_TYPE)
    found = ordered(checks.findings)
    if errors(found):
        return _Read(ontology=None, findings=found)
    ontology = Ontology(
        schema_id=path.stem,
        entity_types={name: type_model(name, text) for name, text in entities.items()},
        edge_types={name: type_model(name, text) for name, text in edges.items()},
        edge_type_map=between,
        excluded_entity_types=excluded,
        edge_rules=rules,
        predicate_rules=predicates,
    )
    place = values.entries["predicate_rules"].key if predicates else None
    return _Read(ontology=ontology, findings=found, predicate_rules=place)


def _holds_ontologies(path: Path) -> bool:
    return path.name == FOLDER and path.is_dir() and not (path / FILE_NAME).exists()


def ontology_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are read as ontologies. Raises ``RulesError`` if it is none."""
    if not folder.is_dir():
        message = "not a folder: pass the folder that holds the ontologies"
        raise RulesError([Finding(level="error", code="missing-file", message=message, place=Place(file=str(folder)))])
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith("."))


def _ignored(folder: Path) -> list[Finding]:
    """Return warnings about files in a folder that look like ontologies but are not read."""
    message = "ontologies are read from .yaml files only: write it as YAML, and rename the file"
    return [
        Finding(level="warning", code="ignored-file", message=message, place=Place(file=str(path)))
        for path in folder.iterdir()
        if path.suffix not in _SUFFIXES and path.suffix.lower() in _MISTAKEN and not path.name.startswith(".")
    ]


def _read(path: Path) -> _Read:
    try:
        data = file_bytes(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        code = "missing-file" if isinstance(error, FileNotFoundError) else "unreadable-file"
        message = f"cannot read {str(path)!r} ({why}): pass a readable file"
        finding = Finding(level="error", code=code, message=message, place=Place(file=str(path)))
        return _Read(ontology=None, findings=(finding,))
    return _read_data(data, path)


class _Checks(FormReader):
    """The checks of one file."""

    def schema_id(self, path: Path) -> None:
        name, place = path.stem, Place(file=str(path))
        if path.suffix != _SUFFIXES[0]:
            self.error("bad-name", f"the file name ends with {path.suffix}: rename it to {name}.yaml", place)
        if not _ID.fullmatch(name):
            message = (
                f"invalid schema id {name!r} (the name of the file): use a lower-case letter, then lower-case letters, "
                "digits and underscores, 64 at most"
            )
            self.error("bad-name", message, place)
        if name in {ontology.schema_id for ontology in BUILT_IN}:
            message = f"{name!r} is a built-in ontology: give the file another name"
            self.error("shadowed-ontology", message, place)

    def types(self, values: Values, key: str) -> _Types:
        """Return the types under a key."""
        node = values.find(key)
        if node is None:
            return {}
        if not isinstance(node, KeyTable):
            self.wrong_type(node, key, "a mapping of names to descriptions")
            return {}
        if not node.entries and key == "entity_types":
            self.error("empty-list", "entity_types is empty: write at least one, such as Person: A human.", node.place)
        found: dict[str, str] = {}
        firsts: dict[str, tuple[str, Place]] = {}
        for name, entry in node.entries.items():
            first, place = firsts.setdefault(name.casefold(), (name, entry.key))
            if not _TYPE.fullmatch(name):
                self.error("bad-name", f"invalid type name {name!r}: use {_IN_A_NAME}", entry.key)
            elif name == ANY_TYPE and key == "entity_types":
                message = f"{ANY_TYPE!r} is always defined, for entities of no other type: leave it out"
                self.error("bad-name", message, entry.key)
            elif first != name:
                message = f"{name!r} differs from {first!r} at line {place.line} only by case: keep one of them"
                self.error("duplicate-name", message, entry.key)
            else:
                found[name] = self._description(name, entry.value)
        return found

    def _description(self, name: str, node: Node) -> str:
        if isinstance(node, Scalar) and isinstance(node.value, str | None):
            text = (node.value or "").strip()
            if not text:
                message = f"{name!r} has no description: describe it in a sentence, which the model reads"
                self.warn("empty-description", message, node.place)
            return text
        self.wrong_type(node, f"the description of {name!r}", "a text")
        return ""

    def edge_type_map(
        self, values: Values, entities: _Types, edges: _Types
    ) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return (source type, target type) -> relation types; without the key, all between any types."""
        if "edge_type_map" not in values:
            return {(ANY_TYPE, ANY_TYPE): tuple(edges)} if edges else {}
        if "edge_type_map" not in values.right:
            return {}
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for item in values.items("edge_type_map"):
            given = self.table(item, BETWEEN)
            sources = self.names(given, "source", entities, ANY_TYPE)
            targets = self.names(given, "target", entities, ANY_TYPE)
            between = self.names(given, "edges", edges)
            for source in sources:
                for target in targets:
                    known = found.get((source, target), ())
                    found[source, target] = (*known, *(name for name in between if name not in known))
        used = {name for names in found.values() for name in names}
        declared = values.find("edge_types")
        for name, entry in declared.entries.items() if isinstance(declared, KeyTable) else ():
            if name in edges and name not in used:
                message = f"no item of edge_type_map has {name!r}, so no relation can use it: add one, or drop the type"
                self.warn("unused-type", message, entry.key)
        return found

    def edge_rules(self, values: Values, edges: _Types) -> Mapping[str, EdgeRule]:
        """Return type -> its rule."""
        if "edge_rules" not in values.right:
            return {}
        self.unique(values.items("edge_rules"), "type", "edge_rules")
        items: dict[str, Values] = {}
        for item in values.items("edge_rules"):
            given = self.table(item, EDGE_RULE)
            for key in ("type", "inverse_of", "transition", "depends_on"):
                if (name := given.text(key)) and name not in edges:
                    near = did_you_mean(name, edges)
                    message = f"{key} names the edge type {name!r}, which edge_types does not have{near}: {_add(near)}"
                    self.error("unknown-type", message, given.place_of(key))
            if given.text("type") in edges:
                items.setdefault(given.text("type"), given)
        rules = {
            name: EdgeRule(
                single_valued=bool(given.right.get("single_valued", False)),
                symmetric=bool(given.right.get("symmetric", False)),
                inverse_of=given.text("inverse_of") or None,
                aliases=tuple(dict.fromkeys(alias for alias, _ in given.texts("aliases"))),
                transition=given.text("transition") or None,
                depends_on=given.text("depends_on") or None,
                when_ended="mark" if given.text("when_ended") == "mark" else "end",
            )
            for name, given in items.items()
        }
        self._aliases(items, edges)
        for name, rule in rules.items():
            self._edge_rule(name, rule, rules, items[name])
        return rules

    def _aliases(self, items: Mapping[str, Values], edges: _Types) -> None:
        seen: dict[str, str] = {}
        for name, given in items.items():
            for alias, place in given.texts("aliases"):
                if not _TYPE.fullmatch(alias):
                    self.error("bad-name", f"invalid type name {alias!r}: use {_IN_A_NAME}", place)
                elif alias in edges:
                    message = f"{alias!r} is a type of edge_types, so it is no alias: remove it here or there"
                    self.error("duplicate-name", message, place)
                elif seen.setdefault(alias, name) != name:
                    message = f"{alias!r} is an alias of {seen[alias]!r} already: keep one of them"
                    self.error("duplicate-name", message, place)

    def _edge_rule(self, name: str, rule: EdgeRule, rules: Mapping[str, EdgeRule], given: Values) -> None:
        """Report rules of types that cannot hold together."""
        if rule.inverse_of is not None:
            others = [key for key in given.entries if key not in {"type", "inverse_of", "aliases"}]
            if others:
                message = (
                    f"{name!r} is stored as {rule.inverse_of!r}, whose item may have {others[0]!r}: write it there"
                )
                self.error("conflicting-keys", message, given.entries[others[0]].key)
            if rule.inverse_of == name:
                message = (
                    f"{name!r} names itself: name the type that says the same from the other end, or write "
                    "symmetric: true if both ends say the same"
                )
                self.error("conflicting-keys", message, given.place_of("inverse_of"))
            elif rules.get(rule.inverse_of, NO_RULE).inverse_of is not None:
                message = f"{rule.inverse_of!r} is an inverse itself: name the type that is stored"
                self.error("conflicting-keys", message, given.place_of("inverse_of"))
        if rule.symmetric and rule.depends_on is not None:
            message = f"{name!r} is symmetric, so it has no source that supports it: remove one of both keys"
            self.error("conflicting-keys", message, given.entries["depends_on"].key)
        if rule.transition is not None:
            into = rules.get(rule.transition, NO_RULE)
            if rule.transition == name or into.transition is not None:
                own = rule.transition == name
                to = "its own type" if own else f"a type that has a transition, as {rule.transition!r} has"
                message = f"a transition cannot lead to {to}: name another type, or remove transition"
                self.error("conflicting-keys", message, given.place_of("transition"))
        if rule.depends_on is not None:
            if rules.get(rule.depends_on, NO_RULE).inverse_of is not None:
                stored = rules[rule.depends_on].inverse_of
                message = f"{rule.depends_on!r} is stored as {stored!r}, from the other end: no source has it"
                self.error("conflicting-keys", message, given.place_of("depends_on"))
            self._chain(name, rules, given, "type")

    def predicate_rules(self, values: Values) -> Mapping[str, EdgeRule]:
        """Return predicate -> its rule."""
        if "predicate_rules" not in values.right:
            return {}
        self.unique(values.items("predicate_rules"), "predicate", "predicate_rules")
        items: dict[str, Values] = {}
        rules: dict[str, EdgeRule] = {}
        for item in values.items("predicate_rules"):
            given = self.table(item, PREDICATE_RULE)
            name, above = given.text("predicate"), given.text("depends_on")
            if not name or not above or name in rules:
                continue
            for key, predicate in (("predicate", name), ("depends_on", above)):
                if not is_known(predicate):
                    near = did_you_mean(predicate, PREDICATES)
                    message = (
                        f"no claim of users has the predicate {predicate!r}{near}: use one of {', '.join(PREDICATES)}"
                    )
                    self.error("unknown-type", message, given.place_of(key))
            if not is_single_valued(above):
                message = f"a user may have several of {above!r} at a time: name a predicate of which there is one"
                self.error("bad-value", message, given.place_of("depends_on"))
            items[name] = given
            marks = given.text("when_ended") == "mark"
            rules[name] = EdgeRule(depends_on=above, when_ended="mark" if marks else "end")
        for name in rules:
            self._chain(name, rules, items[name], "predicate")
        return rules

    def _chain(self, name: str, rules: Mapping[str, EdgeRule], given: Values, kind: str) -> None:
        """Report a chain of dependencies that is too long, or a circle."""
        if rules[name].depends_on == name:
            message = f"{name!r} depends on itself: name another {kind}, or remove depends_on"
        elif level_of(name, rules) > LEVELS:
            above = _above(name, rules)
            circle = above[above.index(above[-1]) :]
            message = f"{' → '.join(map(repr, circle))} is a circle: remove one depends_on"
            if len(circle) == 1:
                message = (
                    f"{name!r} depends on a chain of {len(above) - 1} {kind}s, and at most {LEVELS} may follow: "
                    f"depend on a {kind} nearer to the beginning"
                )
        else:
            return
        self.error("circular-types", message, given.place_of("depends_on"))

    def names(self, values: Values, key: str, known: _Types, *more: str) -> tuple[str, ...]:
        """Return the known names under a key, which holds one name or a list."""
        kind, where = ("edge", "edge_types") if key == "edges" else ("entity", "entity_types")
        found: list[str] = []
        for name, place in values.texts(key):
            if name in known or name in more:
                found.append(name)
                continue
            near = did_you_mean(name, (*known, *more))
            message = f"{key} names the {kind} type {name!r}, which {where} does not have{near}: {_add(near)}"
            self.error("unknown-type", message, place)
        return tuple(dict.fromkeys(found))


def _add(near: str) -> str:
    """Return what to do about a type that is missing; ``near`` names one that may be meant, if any."""
    return "write that, or add it there" if near else "add it there"


def _above(name: str, rules: Mapping[str, EdgeRule]) -> list[str]:
    """Return a type and what it depends on, one through the other, up to the first type that comes again."""
    found = {name: None}  # in order
    while (above := rules.get(name, NO_RULE).depends_on) is not None:
        if above in found:
            return [*found, above]
        name, found[above] = above, None
    return list(found)
