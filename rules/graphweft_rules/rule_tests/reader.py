"""Reads a file ``*_test.yaml``: its cases, and findings with file, line and column for everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import TypeAdapter, ValidationError

from graphweft_contracts import ContextRequest, DeadLetterReason, ReasonCode
from graphweft_contracts.moments import Moment
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.files.file_bytes import file_bytes
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.form_reader import FormReader, Values
from graphweft_rules.files.model import Place
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import Items, KeyTable, Node, Scalar, plain
from graphweft_rules.rule_tests import form
from graphweft_rules.rule_tests.events import STEP, Events, is_broken
from graphweft_rules.rule_tests.model import (
    Case,
    ContextCheck,
    CountCheck,
    ExpectedValue,
    GraphCheck,
    LetterCheck,
    MissingCheck,
    QueryCheck,
    StatementCheck,
    StatementChecks,
)

_NAME: Final = "rule/mutation"
_UNKNOWN: Final = "unknown"
"""Stands for a workflow that has a finding, so that its events and requests have no further ones."""
_TIME: Final = TypeAdapter[datetime](Moment)
_REQUEST: Final = {"agent": "agent", "chat": "chat_id", "user": "user_id", "workflow": "workflow", "context": "context"}
"""Keys of a context request, and the fields of ``ContextRequest``."""


def read_cases(
    data: bytes, path: Path, workflow: str | None, read: Callable[[Path], bytes] = file_bytes
) -> tuple[tuple[Case, ...], tuple[Finding, ...]]:
    """Return the cases of a test file, and its findings. If one is an error, the cases are incomplete.

    ``workflow`` is that of cases that name none. ``read`` reads files of events, and may raise ``OSError`` or
    ``ValueError``.
    """
    root, findings = parse(data, str(path))
    reader = _Reader(findings, path.parent, workflow, read)
    cases = _present(map(reader.case, reader.table(root, form.TEST_FILE).items("tests")))
    return cases, tuple(reader.findings)


class _Reader(FormReader):
    """The checks of one file."""

    def __init__(
        self, findings: Iterable[Finding], folder: Path, workflow: str | None, read: Callable[[Path], bytes]
    ) -> None:
        super().__init__(findings)
        self._folder = folder
        self._default = workflow
        self._read = read
        self._names: dict[str, Place] = {}

    def case(self, node: Node) -> Case | None:
        values = self.table(node, form.CASE)
        if not values.entries:
            return None
        name, workflow = self._case_name(values), self._workflow(values)
        events = Events(self, self._folder, workflow or _UNKNOWN, self._read)
        events.read(values.items("events"))
        return Case(
            name=name,
            workflow=workflow,
            place=values.place_of("name"),
            events=tuple(events.events),
            event_places=tuple(events.places),
            statements=self._statements(values),
            graph=_present(map(self._graph, values.items("graph"))),
            context=_present(self._context(each, workflow or _UNKNOWN, events) for each in values.items("context")),
            letters=_present(map(self._letter, values.items("dead_letters"))),
            unmatched=tuple(text for text, _ in values.texts("unmatched")),
        )

    def _case_name(self, values: Values) -> str:
        name = values.text("name")
        if name:
            place = values.place_of("name")
            first = self._names.setdefault(name, place)
            if first is not place:
                message = f"the name {name!r} is used at line {first.line} already: choose another"
                self.error("duplicate-name", message, place)
        return name

    def _workflow(self, values: Values) -> str:
        if "workflow" in values:
            return values.text("workflow")
        if self._default is None:
            message = "this file is not in the folder of a workflow: add the key 'workflow'"
            self.error("missing-key", message, values.place)
        return self._default or ""

    # -- statements --

    def _statements(self, above: Values) -> StatementChecks | None:
        if "statements" not in above:
            return None
        checks = _present(map(self._statement, above.items("statements")))
        return StatementChecks(checks=checks, place=above.place_of("statements"))

    def _statement(self, node: Node) -> StatementCheck | None:
        if isinstance(node, Scalar):
            return self._named(self.string(node, "a statement", f"{_NAME}, a string"), node.place, node.place)
        values = self.table(node, form.STATEMENT)
        kind = next((each for each in form.STATEMENT.one_of if each in values), None)
        if kind is None:
            return None
        given = values.find("params")
        params: dict[str, ExpectedValue] = {}
        if isinstance(given, KeyTable):
            params = {key: _expected(entry.value) for key, entry in given.entries.items()}
        elif given is not None:
            self.wrong_type(given, "params", "a mapping of parameters to values")
        return self._named(
            values.text(kind), values.place_of(kind), node.place,
            skipped=kind == "skipped", params=params, reason=values.text("reason"),
        )  # fmt: skip

    def _named(
        self, name: str, at: Place, place: Place, *, skipped: bool = False,
        params: Mapping[str, ExpectedValue] | None = None, reason: str = "",
    ) -> StatementCheck | None:  # fmt: skip
        if not name:
            return None
        if "/" not in name:
            self.error("bad-value", f"{name!r} is not {_NAME}: write both names", at)
        return StatementCheck(name=name, skipped=skipped, params=params or {}, reason=reason, place=place)

    # -- graph --

    def _graph(self, node: Node) -> GraphCheck | None:
        values = self.table(node, form.GRAPH)
        if "query" in values:
            return self._query(values)
        kind = next((each for each in form.COUNTED if each in values), None)
        if kind is None:
            return None
        return self._counts(values.entries[kind].value, cast("Literal['nodes', 'relationships']", kind))

    def _query(self, values: Values) -> QueryCheck | None:
        given = values.find("params")
        if not (given is None or isinstance(given, KeyTable)):
            self.wrong_type(given, "params", "a mapping of parameters to values")
            given = None
        if "rows" not in values:
            message = "a query needs the key 'rows': write the rows that it returns, [] for none"
            self.error("missing-key", message, values.place)
            return None
        query, rows = values.text("query"), values.items("rows")
        for row in rows:
            if not isinstance(row, Items | KeyTable):
                self.wrong_type(row, "a row", "a list of values, or a mapping of columns to values")
        return QueryCheck(
            query=query,
            params={} if given is None else plain(given),
            rows=tuple(map(_expected, rows)),
            ordered=_is_ordered(query),
            place=values.place_of("query"),
            rows_place=values.place_of("rows"),
        )

    def _counts(self, node: Node, of: Literal["nodes", "relationships"]) -> CountCheck:
        named = node.entries if isinstance(node, KeyTable) else None
        nodes = {"": node} if named is None else {name: entry.value for name, entry in named.items()}
        counts: dict[str, ExpectedValue] = {}
        for name, each in nodes.items():
            value = plain(each)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                counts[name] = _expected(each)
            else:
                label = "labels" if of == "nodes" else "types"
                wanted = "a number from 0" if named is not None else f"a number, or a mapping of {label} to numbers"
                self.wrong_type(each, of if named is None else f"{of}: {name}", wanted)
        return CountCheck(of=of, counts=counts)

    # -- context --

    def _context(self, node: Node, workflow: str, events: Events) -> ContextCheck | None:
        values = self.table(node, form.CONTEXT)
        if "agent" not in values or is_broken(node):
            return None
        request = self._request(values, workflow, events.last_chat)
        time = self._time(values, events.last_time + STEP)
        if request is None:
            return None
        return ContextCheck(
            request=request,
            budget_ms=values.whole("budget_ms") or form.DEFAULT_BUDGET_MS,
            time=time,
            contains=_parts(values, "contains"),
            excludes=_parts(values, "excludes"),
            equals=_simple(values, "equals"),
            empty=_simple(values, "empty"),
            missing=tuple(map(self._missing, values.items("missing"))),
            place=node.place,
        )

    def _request(self, values: Values, workflow: str, chat: str) -> ContextRequest | None:
        fields: dict[str, Any] = {"workflow": workflow, "chat_id": chat}
        fields |= {field: plain(values.entries[key].value) for key, field in _REQUEST.items() if key in values}
        max_tokens = values.whole("max_tokens")
        try:
            return ContextRequest(id="test", app_id="test", deadline_ms=0, max_tokens=max_tokens, **fields)
        except ValidationError as error:
            for item in error.errors(include_input=False, include_url=False, include_context=False):
                key = next((key for key, field in _REQUEST.items() if field == item["loc"][0]), "agent")
                place = values.place_of(key if key in values else "agent")
                self.error("bad-value", f"{key}: {item['msg']}", place)
            return None

    def _time(self, values: Values, default: datetime) -> datetime:
        node = values.find("time")
        if node is None:
            return default
        try:
            return _TIME.validate_python(plain(node))
        except ValidationError:
            wanted = "a time with its zone, as 2026-01-31T10:00:00Z"
            if isinstance(node, Scalar) and isinstance(node.value, str):
                self.error("bad-value", f"time is {node.value!r}: write {wanted}", node.place)
            else:
                self.wrong_type(node, "time", wanted)
            return default

    def _missing(self, node: Node) -> MissingCheck:
        if isinstance(node, Scalar):
            name = self.string(node, "missing", "the name of a block")
            return MissingCheck(name=name, reason=None, place=node.place)
        values = self.table(node, form.MISSING)
        reason = cast("ReasonCode | None", values.text("reason") or None)
        return MissingCheck(name=values.text("name"), reason=reason, place=node.place)

    # -- dead letters --

    def _letter(self, node: Node) -> LetterCheck | None:
        values = self.table(node, form.LETTER)
        if not (reason := values.text("reason")):
            return None
        return LetterCheck(
            reason=cast("DeadLetterReason", reason),
            rule=values.text("rule") or None,
            mutation=values.text("mutation") or None,
            type=values.text("type") or None,
            message=values.text("message"),
            events=values.whole("events"),
            place=node.place,
        )


def _present[T](found: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(each for each in found if each is not None)


def _parts(values: Values, key: str) -> tuple[ExpectedValue, ...]:
    return tuple(ExpectedValue(value=text, place=place) for text, place in values.texts(key))


def _simple(values: Values, key: str) -> ExpectedValue | None:
    """Return a text or flag that is right."""
    return ExpectedValue(value=values.right[key], place=values.place_of(key)) if key in values.right else None


def _expected(node: Node) -> ExpectedValue:
    return ExpectedValue(value=plain(node), place=node.place)


def _is_ordered(query: str) -> bool:
    """Return whether the last RETURN of a query has an ORDER BY."""
    ordered = False
    for clause in outline(query).clauses:
        if clause.depth == 0 and clause.keyword in ("RETURN", "UNION"):
            ordered = False
        elif clause.depth == 0 and clause.keyword == "ORDER":
            ordered = True
    return ordered
