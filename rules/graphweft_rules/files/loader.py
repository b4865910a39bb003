"""Loads rule files: reading, ``extends``, merging, and the loader of the rule contract."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Final

from graphweft_contracts.utf8 import utf8_fault
from graphweft_rules.cypher.batch_query import Dialect
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.below import files_below
from graphweft_rules.files.file_bytes import file_bytes
from graphweft_rules.files.findings import Finding, RulesError, errors, ordered
from graphweft_rules.files.model import EVERY_AGENT, GraphInjectionConfig, InjectionRule, MutationRule, Place
from graphweft_rules.files.rule_reader import RuleFile, read_rules
from graphweft_rules.files.search_indexes import dimensions_of, indexed_properties, named_indexes
from graphweft_rules.matching.searches import parse_retrieval
from graphweft_rules.text_limits import dimensions_problem, keys_problem

FILE_NAME: Final = "graph_injection.yaml"
"""The rule file in a workflow's folder."""
_NEARLY: Final = re.compile(r"graph[-_ ]?injections?\.(ya?ml|json)(\.txt)?")
"""Names that look like that of a rule file, in lower case."""
TESTS: Final = "_test.yaml"
"""The end of the names of files with rule tests, which are no rules."""


class GraphInjectionLoader:
    """Loads the rules of one workflow and returns those that apply.

    The rules are those of the last ``load`` that succeeded. Before it, and after a folder without rules, none apply.
    """

    def __init__(self, dialects: Iterable[Dialect] = ()) -> None:
        self._dialects = tuple(dialects)
        self._config: GraphInjectionConfig | None = None

    def load(self, workflow_path: Path) -> GraphInjectionConfig | None:
        """Return the rules of a workflow's folder, or of a rule file; None without the folder, or a rule file in it.

        Raises ``RulesError`` if the file, or one that it extends, has an error. It holds all findings.
        """
        path = workflow_path
        if path.is_dir() or (not path.suffix and not os.path.lexists(path)):
            path = path / FILE_NAME
            if not path.exists():
                self._config = None
                return None
        resolved = RuleFiles(self._dialects).resolve(path)
        if resolved.config is None:
            raise RulesError(resolved.findings)
        self._config = resolved.config
        return self._config

    def get_injection_rules(self, agent_name: str) -> list[InjectionRule]:
        """Return the rules for the turns of an agent, in processing order."""
        rules = self._config.injection_rules if self._config else ()
        return [rule for rule in rules if _covers(rule.agents, agent_name)]

    def get_mutation_rules(self, event: str, agent_name: str | None = None) -> list[MutationRule]:
        """Return the rules for an event type, in processing order; without ``agent_name``, for all agents."""
        rules = self._config.mutation_rules if self._config else ()
        return [
            rule
            for rule in rules
            if any(covers_type(pattern, event) for pattern in rule.events)
            and (agent_name is None or not rule.agents or _covers(rule.agents, agent_name))
        ]


def discover(root: Path) -> dict[str, Path]:
    """Return workflow name -> rule file for the folders in ``root``, by name.

    Folders that start with ``_`` (shared bases) or ``.``, and folders without a rule file, are skipped. Raises
    ``RulesError`` if ``root`` is not a folder, or the name of a workflow's folder is not UTF-8.
    """
    if not root.is_dir():
        message = "the folder does not exist: pass the folder that holds the workflows' folders"
        raise RulesError([Finding(level="error", code="missing-file", message=message, place=Place(file=str(root)))])
    files = {folder.name: folder / FILE_NAME for folder in sorted(root.iterdir()) if _is_workflow(folder.name)}
    found = {name: file for name, file in files.items() if file.is_file()}
    for name, file in found.items():
        if fault := utf8_fault(name, "rename it"):
            message, place = f"the name of the folder is {fault}", Place(file=str(file))
            raise RulesError([Finding(level="error", code="bad-value", message=message, place=place)])
    return found


def unread_files(root: Path, *, is_root: bool = True) -> Iterator[Finding]:
    """Yield a warning for each file below ``root`` that is named almost like a rule file, and is none.

    With ``is_root``, ``root`` holds the workflows' folders, so rule files directly in it or further down are none.
    """
    for file in sorted(files_below(root)):
        folders = file.relative_to(root).parts[:-1]
        shared = any(folder.startswith("_") for folder in folders)
        if shared or file.name.lower().endswith(TESTS) or not _NEARLY.fullmatch(file.name.lower()):
            continue
        if file.name != FILE_NAME:
            message = f"nobody reads {file.name!r}: rename it to {FILE_NAME!r}, or remove it"
        elif is_root and len(folders) != 1:
            where = "directly in the folder of rules" if not folders else "too deep in the folder of rules"
            message = f"nobody reads this file, which is {where}: put it into <Workflow>/{FILE_NAME}"
        else:
            continue
        yield Finding(level="warning", code="unread-file", message=message, place=Place(file=str(file)))


def workflow_files(names: Iterable[str]) -> dict[str, Path]:
    """Return workflow name -> rule file, like ``discover``, for files named relative to the root."""
    found = {path.parts[0]: path for path in map(Path, sorted(names)) if len(path.parts) == 2}
    return {name: path for name, path in found.items() if path.name == FILE_NAME and _is_workflow(name)}


def reader_of(contents: Mapping[str, bytes]) -> Callable[[Path], bytes]:
    """Return what reads files that are given by their paths from the root, for ``RuleFiles``."""

    def read(path: Path) -> bytes:
        data = contents.get(path.as_posix())
        if data is None:
            raise FileNotFoundError(path)
        return data

    return read


def _is_workflow(folder: str) -> bool:
    return folder[0] not in "_."


def merge(parent: GraphInjectionConfig, child: GraphInjectionConfig) -> GraphInjectionConfig:
    """Return the parent's rules, without those of the same name in the child, then the child's rules.

    Injection and mutation rules have separate namespaces. Merging is associative and keeps names unique.
    """
    injections = {rule.name for rule in child.injection_rules}
    mutations = {rule.name for rule in child.mutation_rules}
    return GraphInjectionConfig(
        version=child.version,
        injection_rules=(*(r for r in parent.injection_rules if r.name not in injections), *child.injection_rules),
        mutation_rules=(*(r for r in parent.mutation_rules if r.name not in mutations), *child.mutation_rules),
        files=(*(file for file in parent.files if file not in child.files), *child.files),
    )


def keys_of(config: GraphInjectionConfig) -> frozenset[tuple[str, str]]:
    """Return the look-up keys (label, property) of rules without errors, and what searches index."""
    mutations = (parse(each.cypher, role="mutation") for rule in config.mutation_rules for each in rule.mutations)
    queries = [each for rule in config.injection_rules for each in rule.queries]
    injections = (parse(each.cypher, role="injection") for each in queries if each.cypher is not None)
    searches = (each.search.retrieval_query for each in queries if each.search is not None)
    retrievals = (parse_retrieval(text) for text in searches if text is not None)
    keys = (key for each in chain(mutations, injections, retrievals) for key in each.keys)
    return frozenset(keys) | indexed_properties(named_indexes(config.injection_rules))


def index_findings(configs: Iterable[GraphInjectionConfig], place: Place) -> Iterator[Finding]:
    """Yield the findings of rules without errors whose indexes are too many or, for vectors, too long together."""
    configs = tuple(configs)
    named = (each for config in configs for each in named_indexes(config.injection_rules))
    for code, message in (
        ("too-many-keys", keys_problem(frozenset(key for config in configs for key in keys_of(config)))),
        ("too-many-dimensions", dimensions_problem(dimensions_of(named))),
    ):
        if message is not None:
            yield Finding(level="error", code=code, message=message, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteFile:
    """A rule file with all that it extends; ``config`` is None if a finding is an error."""

    config: GraphInjectionConfig | None
    findings: tuple[Finding, ...]


class RuleFiles:
    """Reads each rule file once, however many files extend it; make a new one to see changed files."""

    def __init__(
        self,
        dialects: Iterable[Dialect] = (),
        read: Callable[[Path], bytes] = file_bytes,
        root: Path | None = None,
    ) -> None:
        """``read`` returns the content of a file, or raises ``OSError`` or ``ValueError``.

        With ``root``, rules name files from there.
        """
        self._dialects = tuple(dialects)
        self._read_bytes = read
        self._root = root
        self._read: dict[str, RuleFile | OSError | ValueError] = {}
        self._data: dict[str, bytes] = {}
        self.contents: dict[Path, bytes] = {}
        """The files that were read."""

    def contents_from(self, root: Path) -> dict[str, bytes]:
        """Return the files that were read, by their paths from the root."""
        return {_from(root, path).as_posix(): data for path, data in self.contents.items()}

    def resolve(self, path: Path, root: Path | None = None) -> CompleteFile:
        """Return the rules of a file after ``extends``, with the findings of all files involved.

        Parents come before children, several parents from left to right. A base that is reached twice counts once, at
        its first place, so it cannot undo an override. Never raises on content.

        A base is a YAML file under ``root``, wherever links lead; others are not read. By default ``root`` is the
        folder that holds the file's folder.
        """
        walk = _Walk(root=os.path.realpath(Path(os.path.abspath(path)).parent.parent if root is None else root))
        files = list(self._lineage(path, Place(file=str(path)), (), walk))
        findings = [*walk.findings, *(finding for file in files for finding in file.findings)]
        config = None if errors(findings) else reduce(merge, (file.config for file in files))
        if config is not None and (much := list(index_findings([config], Place(file=str(path))))):
            findings += much
            config = None
        return CompleteFile(config=config, findings=ordered(findings))

    def _lineage(
        self,
        path: Path,
        named_at: Place,
        descent: tuple[tuple[str, Path], ...],
        walk: _Walk,
    ) -> Iterator[RuleFile]:
        """Yield the ancestors of a file, then the file, each once; ``descent`` is the path of files down to it."""
        identity, file = self._open(path)
        if identity in (above for above, _ in descent):
            chain = " -> ".join(str(each) for each in (*(name for _, name in descent), path))
            message = f"{chain} is a cycle: remove one of these 'extends'"
            walk.findings.append(Finding(level="error", code="extends-cycle", message=message, place=named_at))
            return
        if identity in walk.visited:
            return
        if not isinstance(file, RuleFile):
            walk.findings.append(_unreadable(path, file, named_at, extended=bool(descent)))
            return
        walk.visited.add(identity)
        for name, place in file.extends:
            # normpath, so that a base has one name whichever workflow's folder leads to it
            parent = Path(os.path.normpath(path.parent / name))
            if refused := _refused(name, parent, walk.root):
                walk.findings.append(Finding(level="error", code="extends-refused", message=refused, place=place))
            else:
                yield from self._lineage(parent, place, (*descent, (identity, path)), walk)
        yield file

    def _open(self, path: Path) -> tuple[str, RuleFile | OSError | ValueError]:
        """Return the identity of a file, whatever its path, and its content or the error."""
        try:
            identity = os.path.realpath(path)  # Path.resolve raises on cyclic links
        except ValueError as error:  # a null character in the path
            return str(path), error
        if identity in self._data:
            self.contents[path] = self._data[identity]  # another path to it
        if identity not in self._read:
            try:
                data = self._read_bytes(path)
            except (OSError, ValueError) as error:
                self._read[identity] = error
            else:
                self._data[identity] = self.contents[path] = data
                named = path if self._root is None else _from(self._root, path)
                self._read[identity] = read_rules(data, named, self._dialects)
        return identity, self._read[identity]


def _from(root: Path, path: Path) -> Path:
    return Path(os.path.relpath(path, root))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """What is shared while a file and its bases are read."""

    root: str
    """The real path of the folder that bases must be in."""
    visited: set[str] = field(default_factory=set[str])
    findings: list[Finding] = field(default_factory=list[Finding])


def _refused(name: str, path: Path, within: str) -> str:
    """Return why a file cannot be extended, or an empty text; the file is not read."""
    try:
        real = os.path.realpath(path)
    except ValueError:  # a null character in the path, which is reported where the file is opened
        return ""
    if os.path.commonpath((within, real)) != within:
        return f"{name!r} is outside of the rules folder: copy the file into the folder, for example into _shared"
    if not os.path.isdir(real) and not all(file.endswith((".yaml", ".yml")) for file in (str(path), real)):
        return f"{name!r} is not a YAML file: extend a file that ends with .yaml"
    return ""


def _unreadable(path: Path, error: OSError | ValueError, named_at: Place, *, extended: bool) -> Finding:
    if isinstance(error, FileNotFoundError):
        code, message = "missing-file", f"the file {str(path)!r} does not exist: correct the path"
        if not path.suffix:
            message = (
                f"the folder {str(path)!r} does not exist: correct the path, or change to the folder of the project"
            )
    else:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        code, message = "unreadable-file", f"{str(path)!r} cannot be read ({why}): pass a readable rule file"
    if extended:
        code, message = "extends-" + code.removesuffix("-file"), message + "; it is relative to this file's folder"
    return Finding(level="error", code=code, message=message, place=named_at)


def _covers(agents: tuple[str, ...], agent: str) -> bool:
    return agent in agents or EVERY_AGENT in agents


def covers_type(pattern: str, event: str) -> bool:
    """Return whether an item of a rule's ``events`` matches an event type."""
    return pattern in {event, "*"} or (pattern.endswith(".*") and event.startswith(pattern[:-1]))
