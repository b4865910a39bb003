"""Reads a file ``*_test.yaml``: its cases, and findings with file, line and column for everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from pydantic import TypeAdapter, ValidationError

from graphweft_contracts import ContextRequest, DeadLetterReason, ReasonCode
from graphweft_contracts.moments import Moment
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.files.findings import Finding, did_you_mean
from graphweft_rules.files.model import Place
from graphweft_rules.files.shapes import Entries, Shapes
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import Items, KeyTable, Node, Scalar, plain
from graphweft_rules.rule_tests.events import STEP, Events, is_broken
from graphweft_rules.rule_tests.model import (
    Case,
    ContextCheck,
    CountCheck,
    Expected,
    GraphCheck,
    LetterCheck,
    MissingCheck,
    QueryCheck,
    StatementCheck,
    StatementChecks,
)

DEFAULT_BUDGET_MS: Final = 10_000
"""Generous: a test must not depend on how fast its machine is."""
MOST_BUDGET_MS: Final = 3_600_000
_NAME: Final = "rule/mutation"
_UNKNOWN: Final = "unknown"
"""Stands for a workflow that has a finding, so that its events and requests have no further ones."""
_TIME: Final = TypeAdapter[datetime](Moment)
_REQUEST: Final = {"agent": "agent", "chat": "chat_id", "user": "user_id", "workflow": "workflow", "context": "context"}
"""Keys of a context request, and the fields of ``ContextRequest``."""


def read_cases(
    data: bytes, path: Path, workflow: str | None, read: Callable[[Path], bytes] = Path.read_bytes
) -> tuple[tuple[Case, ...], tuple[Finding, ...]]:
    """Return the cases of a test file, and its findings. If one is an error, the cases are incomplete.

    ``workflow`` is that of cases that name none. ``read`` reads files of events, and may raise ``OSError``.
    """
    root, findings = parse(data, str(path))
    reader = _Reader(findings, path.parent, workflow, read)
    entries = reader.table(root, "a test file", required={"tests"}, optional=set())
    cases = tuple(case for case in reader.each(entries, "tests", reader.case) if case is not None)
    node = entries["tests"].value if "tests" in entries else None
    if isinstance(node, Items) and not node.items:
        reader.error("empty-list", "tests is empty: write at least one case, or remove the file", node.place)
    return cases, tuple(reader.findings)


class _Reader(Shapes):
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
        optional = {"workflow", "events", "statements", "graph", "context", "dead_letters", "unmatched"}
        entries = self.table(node, "a case", required={"name"}, optional=optional)
        if not entries:
            return None
        name, workflow = self._case_name(entries), self._workflow(entries, node)
        events = Events(self, self._folder, workflow or _UNKNOWN, self._read)
        if "events" in entries:
            events.read(entries["events"].value)
        return Case(
            name=name,
            workflow=workflow,
            place=entries["name"].value.place if "name" in entries else node.place,
            events=tuple(events.events),
            event_places=tuple(events.places),
            statements=self._statements(entries),
            graph=tuple(each for each in self.each(entries, "graph", self._graph) if each is not None),
            context=tuple(
                each
                for each in self.each(entries, "context", lambda one: self._context(one, workflow or _UNKNOWN, events))
                if each is not None
            ),
            letters=tuple(each for each in self.each(entries, "dead_letters", self._letter) if each is not None),
            unmatched=tuple(text for text, _ in self.texts(entries, "unmatched", '["agent.turn_start", "tool.*"]')),
        )

    def _case_name(self, entries: Entries) -> str:
        name = self.text(entries, "name")
        if name:
            place = entries["name"].value.place
            first = self._names.setdefault(name, place)
            if first is not place:
                message = f"the name {name!r} is used at line {first.line} already: choose another"
                self.error("duplicate-name", message, place)
        return name

    def _workflow(self, entries: Entries, node: Node) -> str:
        if "workflow" in entries:
            return self.text(entries, "workflow")
        if self._default is None:
            message = "this file is not in the folder of a workflow: add the key 'workflow'"
            self.error("missing-key", message, node.place)
        return self._default or ""

    # -- statements --

    def _statements(self, entries: Entries) -> StatementChecks | None:
        if "statements" not in entries:
            return None
        checks = tuple(each for each in self.each(entries, "statements", self._statement) if each is not None)
        return StatementChecks(checks=checks, place=entries["statements"].value.place)

    def _statement(self, node: Node) -> StatementCheck | None:
        if isinstance(node, Scalar):
            return self._named(node, node.place, skipped=False)
        entries = self.table(node, "a statement", required=set(), optional={"mutation", "skipped", "params", "reason"})
        kind = self._one_of(entries, node, "a statement", ("mutation", "skipped"))
        if kind is None:
            return None
        wrong = {"mutation": "reason", "skipped": "params"}[kind]
        if wrong in entries:
            self.error("unknown-key", f"{wrong!r} does not go with {kind!r}: remove it", entries[wrong].key)
        params: dict[str, Expected] = {}
        if "params" in entries:
            given = entries["params"].value
            if isinstance(given, KeyTable):
                params = {key: _expected(entry.value) for key, entry in given.entries.items()}
            else:
                self.wrong_type(given, "params", "a mapping of parameters to values")
        reason = self.text(entries, "reason")
        return self._named(entries[kind].value, node.place, skipped=kind == "skipped", params=params, reason=reason)

    def _named(
        self, node: Node, place: Place, *, skipped: bool, params: Mapping[str, Expected] | None = None, reason: str = ""
    ) -> StatementCheck | None:
        name = self.string(node, "a statement", f"{_NAME}, a string")
        if not name:
            return None
        if "/" not in name:
            self.error("bad-value", f"{name!r} is not {_NAME}: write both names", node.place)
        return StatementCheck(name=name, skipped=skipped, params=params or {}, reason=reason, place=place)

    # -- graph --

    def _graph(self, node: Node) -> GraphCheck | None:
        optional = {"query", "params", "rows", "nodes", "relationships"}
        entries = self.table(node, "a check of the graph", required=set(), optional=optional)
        kind = self._one_of(entries, node, "a check of the graph", ("query", "nodes", "relationships"))
        if kind is None:
            return None
        if kind == "query":
            return self._query(entries, node)
        for key in ("params", "rows"):
            if key in entries:
                self.error("unknown-key", f"{key!r} goes with 'query' only: remove it", entries[key].key)
        return self._counts(entries[kind].value, cast("Literal['nodes', 'relationships']", kind))

    def _query(self, entries: Entries, node: Node) -> QueryCheck | None:
        query = self.text(entries, "query")
        params: Any = plain(entries["params"].value) if "params" in entries else {}
        if not isinstance(params, dict):
            self.wrong_type(entries["params"].value, "params", "a mapping of parameters to values")
            params = {}
        if "rows" not in entries:
            message = "a query needs the key 'rows': write the rows that it returns, [] for none"
            self.error("missing-key", message, node.place)
            return None
        rows = entries["rows"].value
        if not isinstance(rows, Items):
            self.wrong_type(rows, "rows", "a list of rows")
            return None
        for row in rows.items:
            if not isinstance(row, Items | KeyTable):
                self.wrong_type(row, "a row", "a list of values, or a mapping of columns to values")
        return QueryCheck(
            query=query,
            params=cast("dict[str, Any]", params),
            rows=tuple(map(_expected, rows.items)),
            ordered=_is_ordered(query),
            place=entries["query"].value.place,
            rows_place=rows.place,
        )

    def _counts(self, node: Node, of: Literal["nodes", "relationships"]) -> CountCheck:
        named = node.entries if isinstance(node, KeyTable) else None
        nodes = {"": node} if named is None else {name: entry.value for name, entry in named.items()}
        counts: dict[str, Expected] = {}
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
        checks = ("contains", "excludes", "equals", "empty", "missing")
        optional = {*_REQUEST, "budget_ms", "max_tokens", "time", *checks} - {"agent"}
        entries = self.table(node, "a check of context", required={"agent"}, optional=optional)
        if "agent" not in entries or is_broken(node):
            return None
        if not any(key in entries for key in checks):
            self.error("missing-key", f"a check of context needs one of {', '.join(checks)}", node.place)
        budget = self.whole(entries, "budget_ms", least=1) or DEFAULT_BUDGET_MS
        if budget > MOST_BUDGET_MS:
            message = f"budget_ms is {budget}: write at most {MOST_BUDGET_MS}"
            self.error("bad-value", message, entries["budget_ms"].value.place)
        request = self._request(entries, workflow, events.last_chat)
        time = self._time(entries, events.last_time + STEP)
        if request is None:
            return None
        empty = self.flag(entries, "empty")
        text = self.text(entries, "equals")
        return ContextCheck(
            request=request,
            budget_ms=budget,
            time=time,
            contains=self._texts(entries, "contains"),
            excludes=self._texts(entries, "excludes"),
            equals=Expected(value=text, place=entries["equals"].value.place) if text else None,
            empty=None if empty is None else Expected(value=empty, place=entries["empty"].value.place),
            missing=tuple(each for each in self.each(entries, "missing", self._missing) if each is not None),
            place=node.place,
        )

    def _request(self, entries: Entries, workflow: str, chat: str) -> ContextRequest | None:
        fields: dict[str, Any] = {"workflow": workflow, "chat_id": chat}
        fields |= {field: plain(entries[key].value) for key, field in _REQUEST.items() if key in entries}
        max_tokens = self.whole(entries, "max_tokens", least=1)
        try:
            return ContextRequest(id="test", app_id="test", deadline_ms=0, max_tokens=max_tokens, **fields)
        except ValidationError as error:
            for item in error.errors(include_input=False, include_url=False, include_context=False):
                key = next((key for key, field in _REQUEST.items() if field == item["loc"][0]), "agent")
                place = (entries[key] if key in entries else entries["agent"]).value.place
                self.error("bad-value", f"{key}: {item['msg']}", place)
            return None

    def _time(self, entries: Entries, default: datetime) -> datetime:
        if "time" not in entries:
            return default
        try:
            return _TIME.validate_python(plain(entries["time"].value))
        except ValidationError:
            node, wanted = entries["time"].value, "a time with its zone, as 2026-01-31T10:00:00Z"
            if isinstance(node, Scalar) and isinstance(node.value, str):
                self.error("bad-value", f"time is {node.value!r}: write {wanted}", node.place)
            else:
                self.wrong_type(node, "time", wanted)
            return default

    def _texts(self, entries: Entries, key: str) -> tuple[Expected, ...]:
        if key in entries and isinstance(entries[key].value, Scalar):
            text = self.text(entries, key)
            return (Expected(value=text, place=entries[key].value.place),) if text else ()
        return tuple(Expected(value=text, place=place) for text, place in self.texts(entries, key, '["a text"]'))

    def _missing(self, node: Node) -> MissingCheck | None:
        if isinstance(node, Scalar):
            name = self.string(node, "missing", "the name of a block")
            return MissingCheck(name=name, reason=None, place=node.place)
        entries = self.table(node, "a missing block", required={"name"}, optional={"reason"})
        reason = cast("ReasonCode | None", self._member(entries, "reason", get_args(ReasonCode)))
        return MissingCheck(name=self.text(entries, "name"), reason=reason, place=node.place)

    # -- dead letters --

    def _letter(self, node: Node) -> LetterCheck | None:
        optional = {"rule", "mutation", "type", "message", "events"}
        entries = self.table(node, "a dead letter", required={"reason"}, optional=optional)
        reason = self._member(entries, "reason", get_args(DeadLetterReason))
        if reason is None:
            return None
        return LetterCheck(
            reason=cast("DeadLetterReason", reason),
            rule=self.text(entries, "rule") or None,
            mutation=self.text(entries, "mutation") or None,
            type=self.text(entries, "type") or None,
            message=self.text(entries, "message"),
            events=self.whole(entries, "events", least=1),
            place=node.place,
        )

    def _member(self, entries: Entries, key: str, known: tuple[str, ...]) -> str | None:
        text = self.text(entries, key)
        if not text or text in known:
            return text or None
        message = f"the {key} {text!r} is unknown{did_you_mean(text, known)}: write one of {', '.join(known)}"
        self.error("bad-value", message, entries[key].value.place)
        return None

    def _one_of(self, entries: Entries, node: Node, what: str, keys: tuple[str, ...]) -> str | None:
        given = [key for key in keys if key in entries]
        if len(given) == 1:
            return given[0]
        if isinstance(node, KeyTable):
            self.error("missing-key", f"{what} needs exactly one of {', '.join(keys)}", node.place)
        return None


def _expected(node: Node) -> Expected:
    return Expected(value=plain(node), place=node.place)


def _is_ordered(query: str) -> bool:
    """Return whether the last RETURN of a query has an ORDER BY."""
    ordered = False
    for clause in outline(query).clauses:
        if clause.depth == 0 and clause.keyword in ("RETURN", "UNION"):
            ordered = False
        elif clause.depth == 0 and clause.keyword == "ORDER":
            ordered = True
    return ordered
