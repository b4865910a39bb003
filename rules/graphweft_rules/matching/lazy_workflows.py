"""The workflows of stored rule files, each compiled when it is first used.

Rule sets that follow each other differ in few files, so a process compiles each workflow once, as long as one of its
rule sets is in use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, override
from weakref import WeakValueDictionary

from graphweft_rules.cypher.batch_query import Dialect
from graphweft_rules.files.findings import Finding, RulesError
from graphweft_rules.files.loader import RuleFiles, workflow_files
from graphweft_rules.files.model import Place
from graphweft_rules.matching.conditions import ENDING
from graphweft_rules.matching.workflow import Workflow, compile_workflow

_LONGEST_CAUSE: Final = 200
_MOST_VERSIONS: Final = 16
"""Versions of one workflow that are compared with its files."""

type _Content = frozenset[tuple[str, bytes]]
"""Names and content of the files of a workflow: its own and all that it extends."""
type _Origin = tuple[str, tuple[Dialect, ...]]

_known: dict[_Origin, list[_Content]] = {}
_compiled: WeakValueDictionary[tuple[_Origin, _Content], Workflow] = WeakValueDictionary()


def share(workflow: Workflow, contents: Mapping[str, bytes], dialects: Iterable[Dialect]) -> None:
    """Let rule sets with these files have a compiled workflow, as long as it is in use.

    ``contents`` are its files by their paths from the root, as its places name them.
    """
    content = frozenset(contents.items())
    origin = (workflow.name, tuple(dialects))
    versions = [each for each in _known.get(origin, ()) if (origin, each) in _compiled]
    _known[origin] = [*versions, content][-_MOST_VERSIONS:]
    _compiled[origin, content] = workflow


class LazyWorkflows(Mapping[str, Workflow]):
    """Workflow name -> compiled rules; threads may share it. Its names are known without compiling.

    A look-up raises ``RulesError`` if the workflow does not compile, as often as it is looked up.
    """

    def __init__(self, contents: Mapping[str, bytes], dialects: Iterable[Dialect] = ()) -> None:
        """``contents`` are the rule files by their paths from the root."""
        self._contents = contents
        self._dialects = tuple(dialects)
        self._paths = workflow_files(contents)
        self._files = RuleFiles(self._dialects, self._read)
        self._found: dict[str, Workflow | RulesError] = {}
        self._lock = threading.Lock()

    @override
    def __getitem__(self, name: str) -> Workflow:
        found = self._found.get(name) or self._compile(name)
        if isinstance(found, RulesError):
            raise found
        return found

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    @override
    def __len__(self) -> int:
        return len(self._paths)

    @override
    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def is_compiled(self, name: str) -> bool:
        """Tell whether a look-up of this workflow takes no time, because it succeeded or failed before."""
        return name in self._found

    def _compile(self, name: str) -> Workflow | RulesError:
        path = self._paths[name]
        with self._lock:
            if name not in self._found:
                self._found[name] = self._shared(name) or self._fresh(name, path)
            return self._found[name]

    def _shared(self, name: str) -> Workflow | None:
        """Return the workflow that another rule set has compiled of the same files."""
        origin = (name, self._dialects)
        for content in tuple(_known.get(origin, ())):
            if all(self._contents.get(file) == data for file, data in content):
                return _compiled.get((origin, content))
        return None

    def _fresh(self, name: str, path: Path) -> Workflow | RulesError:
        try:
            return self._compiled(name, path)
        except RulesError as error:
            return error
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001 - a library's panic is no ``Exception``, and ends only this workflow
            message = f"the workflow cannot be compiled: {type(error).__name__}: {str(error)[:_LONGEST_CAUSE]}"
            place = Place(file=path.as_posix())
            return RulesError([Finding(level="error", code="not-compiled", message=message, place=place)])

    def _compiled(self, name: str, path: Path) -> Workflow:
        resolved = self._files.resolve(path)
        if resolved.config is None:
            raise RulesError(resolved.findings)
        workflow = compile_workflow(name, resolved.config)
        names = (file.as_posix() for file in resolved.config.files)
        share(workflow, {file: self._contents[file] for file in names}, self._dialects)
        return workflow

    def _read(self, path: Path) -> bytes:
        data = self._contents.get(path.as_posix())
        if data is None:
            raise FileNotFoundError(path)
        return data
