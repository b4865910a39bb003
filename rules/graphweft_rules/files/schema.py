"""The schema of a rule file, checked by hand so that every finding has a line and column.

A validation library would name a path of keys instead, and would never see repeated keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from graphweft_contracts.context import Format
from graphweft_contracts.events import LIFECYCLE, Event, Payload, payload_of
from graphweft_contracts.memory import SCOPES, MemoryScope
from graphweft_contracts.search import EMBEDDED, INDEX_TYPES, MOST_RESULTS, SEARCHED, IndexType, Searched, SearchQuery
from graphweft_rules.cypher import query as cypher
from graphweft_rules.cypher.batch_query import Dialect
from graphweft_rules.cypher.tokens import tokenize
from graphweft_rules.files.findings import Finding, did_you_mean
from graphweft_rules.files.model import (
    EVERY_AGENT,
    FORMATS,
    MESSAGE_HISTORY,
    TOP_K,
    GraphInjectionConfig,
    InjectionGraphrag,
    InjectionQuery,
    InjectionRule,
    InjectionSearch,
    Mutation,
    MutationRule,
    Place,
    Written,
)
from graphweft_rules.files.shapes import Entries, Shapes
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import Broken, Items, KeyTable, Node, Scalar, plain
from graphweft_rules.matching import conditions
from graphweft_rules.matching import parameters as params
from graphweft_rules.matching.clock import OWN_PREFIX
from graphweft_rules.matching.condition_cost import MOST_STEPS, CostClass
from graphweft_rules.matching.searches import parse_retrieval, said
from graphweft_rules.text_limits import MOST_DIMENSIONS

VERSION: Final = "1.0"
EVENT_PATTERN: Final = r"\*|[a-z0-9_]+(?:\.[a-z0-9_]+)*\.(?:[a-z0-9_]+|\*)"
"""An event type, ``prefix.*`` or ``*``, as a whole."""
_EVENT: Final = re.compile(EVENT_PATTERN)
_COSTS: Final[dict[CostClass, str]] = {
    "nested-loop": "a loop within a loop takes as many steps as the product of their items: test one list, or "
    "bound both",
    "copying-loop": "filter() and map() copy at each item all that they have found, so their steps grow with its "
    "square: write exists() or all() where they are enough",
    "foreign-pattern": "the library compiles the pattern of matches() for each event, and whoever writes the event "
    "decides how long that takes: write the pattern as a text, or use contains() or startsWith()",
    "costly-pattern": "the library compiles the pattern of matches() for each event, which takes more than a twentieth "
    "of its steps: write fewer classes such as \\w, and repeat them by * instead of {1,50}",
}
"""By code of a warning: why a condition is dear."""
_KNOWN_EVENTS: Final = (*LIFECYCLE, *sorted({name.partition(".")[0] + ".*" for name in LIFECYCLE}))
_TYPO: Final = 0.85
"""Similarity from which an unknown name looks like a typo: more than ``phase_start`` has to ``phase_complete``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFile:
    """One rule file without the files that it extends; ``config`` is valid if no finding is an error."""

    config: GraphInjectionConfig
    extends: tuple[tuple[str, Place], ...]
    """The paths under ``extends`` as written, with their places."""
    findings: tuple[Finding, ...]


def read_rules(data: bytes, path: Path, dialects: Iterable[Dialect] = ()) -> RuleFile:
    """Read the content of a rule file; ``path`` appears only in places and in ``config.files``."""
    root, findings = parse(data, str(path))
    checks = _Checks(findings, dialects)
    optional = {"extends", "version", "injection_rules", "mutation_rules"}
    entries = checks.table(root, "a rule file", required=set(), optional=optional)
    checks.version(entries)
    checks.holds_rules(entries, root.place)
    config = GraphInjectionConfig(
        injection_rules=tuple(checks.each(entries, "injection_rules", checks.injection_rule)),
        mutation_rules=tuple(checks.each(entries, "mutation_rules", checks.mutation_rule)),
        files=(path,),
    )
    return RuleFile(config=config, extends=tuple(checks.extends(entries)), findings=tuple(checks.findings))


_KINDS: Final[Mapping[str, Format]] = {"cypher": "list", "search": "results", "graphrag": "facts"}
"""The kinds of queries, with the default format of their rows."""
_SEARCH_KEYS: Final = {
    *("memory", "query", "index_type", "index_name", "fulltext_index_name", "top_k", "message_history_count"),
    *("filter_stop_words", "retrieval_query", "of", "dimensions"),
}
_EVENT_FIELD: Final = re.compile(r"\$event\.(\w+)")
_BARE_REFERENCE: Final = re.compile(r"(?:context|event|workflow)(?:\.\w+)+")
_QUOTED_REFERENCE: Final = re.compile(
    r"""['"](?:\{\{\s*)?\$\{?(?P<path>(?:context|event|workflow)(?:\.\w+)*\.(?P<name>\w+))\}?(?:\s*\}\})?['"]"""
)
_REFERENCE: Final = re.compile(r"\$(?:context|event|workflow)(?:\.\w+)*\.(\w+)")


def _texts(node: Node) -> Iterator[Scalar]:
    """Yield the strings in a node."""
    match node:
        case Scalar():
            if isinstance(node.value, str):
                yield node
        case Items():
            for item in node.items:
                yield from _texts(item)
        case KeyTable():
            for entry in node.entries.values():
                yield from _texts(entry.value)
        case Broken():
            pass


def _value(entries: Entries, key: str) -> Node | None:
    return entries[key].value if key in entries else None


def _written(node: Node | None) -> Written | None:
    return node.written if isinstance(node, Scalar) else None


class _Checks(Shapes):
    """The checks of one file."""

    def __init__(self, findings: Iterable[Finding], dialects: Iterable[Dialect]) -> None:
        super().__init__(findings)
        self._parse_injection = partial(cypher.parse, role="injection", dialects=tuple(dialects))
        self._parse_mutation = partial(cypher.parse, role="mutation", dialects=tuple(dialects))
        self._names: dict[tuple[str, str], Place] = {}  # (kind, name) of the file's rules
        self._injected: list[tuple[str, frozenset[str], Place]] = []  # inject_as, agents

    # -- the file --

    def version(self, entries: Entries) -> None:
        node = entries["version"].value if "version" in entries else None
        if node is None or isinstance(node, Broken) or plain(node) == VERSION:
            return
        value = plain(node)
        if not (isinstance(value, float) and value == float(VERSION)):
            self.error("bad-value", f'version {value!r} is unknown: write version: "{VERSION}"', node.place)

    def holds_rules(self, entries: Entries, place: Place) -> None:
        """Warn of a file without rules, which has no effect."""
        if not self.findings and entries.keys().isdisjoint({"extends", "injection_rules", "mutation_rules"}):
            message = (
                "the file has no rules: write injection_rules or mutation_rules, remove the file, or write "
                "`mutation_rules: []` if the workflow's events shall have no effect"
            )
            self.warn("no-rules", message, place)

    def extends(self, entries: Entries) -> Iterable[tuple[str, Place]]:
        entry = entries.get("extends")
        if entry is None:
            return
        listed = isinstance(entry.value, Items)
        for node in entry.value.items if isinstance(entry.value, Items) else (entry.value,):
            wanted = "a path, a string" if listed else "a path or a list of paths"
            if text := self.string(node, "extends", wanted):
                yield text, node.place

    def injection_rule(self, node: Node) -> InjectionRule:
        required, optional = {"name", "agents", "queries"}, {"condition", "priority", "timeout_ms", "max_tokens"}
        entries = self.table(node, "an injection rule", required=required, optional=optional)
        agents = self._agents(entries)

        def query(node: Node) -> InjectionQuery:
            return self._query(node, agents)

        return InjectionRule(
            name=self._rule_name(entries, "injection"),
            agents=agents,
            condition=self._condition(entries),
            priority=self.whole(entries, "priority") or 0,
            timeout_ms=self.whole(entries, "timeout_ms", least=1),
            max_tokens=self.whole(entries, "max_tokens", least=1),
            queries=tuple(self.each(entries, "queries", query, unique="id")),
            place=node.place,
        )

    def mutation_rule(self, node: Node) -> MutationRule:
        required, optional = {"name", "events", "mutations"}, {"agents", "condition"}
        entries = self.table(node, "a mutation rule", required=required, optional=optional)
        events = self._events(entries)
        self._event_fields(node, events)
        return MutationRule(
            name=self._rule_name(entries, "mutation"),
            events=events,
            agents=self._agents(entries),
            condition=self._condition(entries),
            mutations=tuple(self.each(entries, "mutations", self._mutation, unique="id")),
            place=node.place,
        )

    def _query(self, node: Node, agents: tuple[str, ...]) -> InjectionQuery:
        required, optional = {"id", "inject_as"}, {*_KINDS, "params", "format", "max_results"}
        entries = self.table(node, "a query", required=required, optional=optional)
        kinds = [kind for kind in _KINDS if kind in entries]
        if isinstance(node, KeyTable) and not kinds:
            self.error("missing-key", "a query needs one of the keys 'cypher', 'search' and 'graphrag'", node.place)
        if len(kinds) > 1:
            message = "a query has only one of 'cypher', 'search' and 'graphrag': write several queries"
            self.error("conflicting-keys", message, entries[kinds[1]].key)
        search: InjectionSearch | None = None
        graphrag: InjectionGraphrag | None = None
        text = _value(entries, "cypher")
        if "graphrag" in entries:
            graphrag = self._graphrag(entries["graphrag"].value)
            params = self._params(entries, None, self._parse_injection)
            if "params" in entries:
                message = "graphrag takes no params: remove them"
                self.error("conflicting-keys", message, entries["params"].key)
        elif "search" in entries:
            search, text = self._search(entries["search"].value)
            params = self._params(entries, text, parse_retrieval, "retrieval_query")
        else:
            params = self._params(entries, text, self._parse_injection)
        return InjectionQuery(
            id=self.text(entries, "id"),
            cypher=self.text(entries, "cypher") if "cypher" in entries else None,
            search=search,
            graphrag=graphrag,
            params=params,
            inject_as=self._inject_as(entries, frozenset(agents)),
            format=self._format(entries, kinds[0] if kinds else "cypher"),
            max_results=self.whole(entries, "max_results", least=1),
            place=node.place,
            written=_written(text),
        )

    def _graphrag(self, node: Node) -> InjectionGraphrag:
        """Return the ``graphrag`` of a query; its search inherits ``query`` and ``memory``."""
        optional = {"seeds", "search", "memory", "message_history_count"}
        entries = self.table(node, "graphrag", required={"query"}, optional=optional)
        query = self._searched(entries["query"].value) if "query" in entries else None
        memory = self._scopes(entries["memory"].value) if "memory" in entries else None
        count = self._count(entries, "message_history_count") or MESSAGE_HISTORY
        search: InjectionSearch | None = None
        if "search" in entries:
            above = {"query"} if memory is None else {"query", "memory"}
            search, retrieval = self._search(entries["search"].value, frozenset(above))
            if retrieval is not None:
                message = "the search of graphrag only gives seeds: remove retrieval_query"
                self.error("conflicting-keys", message, retrieval.place)
            if search.query is None:
                search = replace(search, query=query, message_history_count=count)
            if search.memory is None and search.index_name is None and search.fulltext_index_name is None:
                search = replace(search, memory=memory)
        return InjectionGraphrag(
            query=query,
            seeds=self._seeds(entries["seeds"].value) if "seeds" in entries else None,
            search=search,
            memory=memory,
            message_history_count=count,
        )

    def _seeds(self, node: Node) -> Any:
        """Return the ``seeds``: a list, or a reference to one. Any other value makes every request skip the query."""
        value = self._source("seeds", node)
        refers = isinstance(value, str) and value.startswith("$") and not value.startswith("$$")
        if not (refers or value is None or isinstance(node, Items | Broken)):
            message = (
                "seeds must be a list of ids or of maps with id, or a reference to one, else every request skips the "
                "query: write for example seeds: $context.recalled, or [id-1]"
            )
            self.warn("unusable-seeds", message, node.place)
        return value

    def _search(self, node: Node, above: frozenset[str] = frozenset()) -> tuple[InjectionSearch, Node | None]:
        """Return a search and the node of its ``retrieval_query``; the keys ``above`` are inherited."""
        entries = self.table(node, "a search", required=set(), optional=_SEARCH_KEYS)
        if isinstance(node, KeyTable):
            self._search_keys(entries, node, above)
        search = InjectionSearch(
            memory=self._scopes(entries["memory"].value) if "memory" in entries else None,
            of=self._of(entries),
            query=self._searched(entries["query"].value) if "query" in entries else None,
            index_type=self._index_type(entries),
            index_name=self._index_name(entries, "index_name"),
            fulltext_index_name=self._index_name(entries, "fulltext_index_name"),
            dimensions=self._count(entries, "dimensions", most=MOST_DIMENSIONS),
            top_k=self._count(entries, "top_k", most=MOST_RESULTS) or TOP_K,
            message_history_count=self._count(entries, "message_history_count") or MESSAGE_HISTORY,
            filter_stop_words=self.flag(entries, "filter_stop_words") is not False,
            retrieval_query=self.text(entries, "retrieval_query") if "retrieval_query" in entries else None,
        )
        return search, _value(entries, "retrieval_query")

    def _search_keys(self, entries: Entries, node: KeyTable, above: frozenset[str]) -> None:
        """Report missing keys, and keys that others make useless."""
        asks = plain(entries["index_type"].value) if "index_type" in entries else None
        indexes = {"index_name", "fulltext_index_name"} & entries.keys()
        said_of = plain(entries["of"].value) if "of" in entries else None
        of = said_of if said_of in SEARCHED else "all"
        if of not in EMBEDDED:
            if "memory" not in entries.keys() | above:
                message = (
                    f"{of} are searched within a scope only: write for example memory: {{user_id: $workflow.user_id}}"
                )
                self.error("missing-key", message, node.place)
                return
            if asks in ("vector", "hybrid"):  # not a set: a list has no hash
                message = f"{of} have no vectors: remove index_type, or write fulltext"
                self.error("conflicting-keys", message, entries["index_type"].key)
        if "dimensions" in entries and ("index_name" not in entries or asks == "fulltext"):
            message = "dimensions are of the vector index that index_name names: name one, or remove the key"
            self.error("conflicting-keys", message, entries["dimensions"].key)
        if "memory" in entries or ("memory" in above and not indexes):
            for key in ("index_name", "fulltext_index_name"):
                if key in entries:
                    named = "memories" if of == "all" else of
                    message = f"{named} have indexes of their own: leave index_name and fulltext_index_name out"
                    self.error("conflicting-keys", message, entries[key].key)
            if asks is not None and "query" not in entries.keys() | above:
                message = f"query is required when index_type={asks!r}: write for example query: $context.messages"
                self.error("missing-key", message, node.place)
            return
        if "query" not in entries.keys() | above:
            message = "query is required: write for example query: $context.messages"
            self.error("missing-key", message, node.place)
        if asks == "hybrid" and "fulltext_index_name" not in entries:
            message = "fulltext_index_name is required when index_type='hybrid'"
            self.error("missing-key", message, entries["index_type"].value.place)
        if asks != "hybrid" and "fulltext_index_name" in entries:
            message = "fulltext_index_name needs index_type='hybrid': remove it, or write index_type: hybrid"
            self.warn("unused-key", message, entries["fulltext_index_name"].key)

    def _scopes(self, node: Node) -> dict[str, Any]:
        """Return the scopes of a search for memories: at least one, each a text or a reference."""
        entries = self.table(node, "memory", required=set(), optional=set(SCOPES))
        if isinstance(node, KeyTable) and not node.entries:
            self.error("missing-key", f"a memory needs a scope: give at least one of {', '.join(SCOPES)}", node.place)
        scopes: dict[str, Any] = {}
        for name, entry in entries.items():
            if not self.string(entry.value, name, "a text, or a reference such as $workflow.user_id"):
                continue
            scopes[name] = value = self._source(name, entry.value)
            try:
                MemoryScope(**{name: value})
            except ValidationError as error:
                self.error("bad-value", said(error), entry.value.place)
        return scopes

    def _searched(self, node: Node) -> Any:
        """Return the ``query`` of a search: a text, a list of messages, or a reference to one of them."""
        if not isinstance(node, Items):
            return self._source("query", node) if self.string(node, "query", "a text or a list of messages") else None
        if not node.items:
            self.error("empty-list", "query is empty: write for example query: $context.messages", node.place)
        for item in node.items:
            if isinstance(item, Scalar) and isinstance(item.value, str) and item.value.startswith("$"):
                continue
            self.table(item, "a message", required={"role"}, optional={"text", "content"})
        return self._source("query", node)

    def _of(self, entries: Entries) -> Searched:
        return cast("Searched", self._one_of(entries, "of", SEARCHED) or "all")

    def _index_type(self, entries: Entries) -> IndexType | None:
        return cast("IndexType | None", self._one_of(entries, "index_type", INDEX_TYPES))

    def _one_of(self, entries: Entries, key: str, names: tuple[str, ...]) -> str | None:
        name = self.text(entries, key) if key in entries else ""
        if name and name not in names:
            message = f"the {key} {name!r} is unknown{did_you_mean(name, names)}: write one of {', '.join(names)}"
            self.error("bad-value", message, entries[key].value.place)
        return name or None

    def _index_name(self, entries: Entries, key: str) -> str | None:
        name = self.text(entries, key)
        if name.startswith("$"):
            message = f"{key} is {name!r}: it must be the name of an index, which is the same for every request"
            self.error("bad-value", message, entries[key].value.place)
        elif name:
            try:
                SearchQuery.model_validate({"index_name": name, key: name})
            except ValidationError as error:
                self.error("bad-value", said(error), entries[key].value.place)
        return name or None

    def _count(self, entries: Entries, key: str, most: int | None = None) -> int | None:
        number = self.whole(entries, key)
        if number is not None and (number < 1 or (most is not None and number > most)):
            message = f"{key} must be at least 1" + ("" if most is None else f", and at most {most}")
            self.error("bad-value", message, entries[key].value.place)
        return number

    def _mutation(self, node: Node) -> Mutation:
        entries = self.table(node, "a mutation", required={"id", "cypher"}, optional={"params"})
        return Mutation(
            id=self.text(entries, "id"),
            cypher=self.text(entries, "cypher"),
            params=self._params(entries, _value(entries, "cypher"), self._parse_mutation),
            place=node.place,
            written=_written(_value(entries, "cypher")),
        )

    # -- keys with rules of their own --

    def _rule_name(self, entries: Entries, kind: str) -> str:
        name = self.text(entries, "name")
        if name:
            place = entries["name"].value.place
            first = self._names.setdefault((kind, name), place)
            if first is not place:
                message = f"the {kind} rule {name!r} is at line {first.line} already: give each its own name"
                self.error("duplicate-name", message, place)
        return name

    def _agents(self, entries: Entries) -> tuple[str, ...]:
        agents = self.texts(entries, "agents", '["AgentA"], or ["*"] for all')
        for name, place in agents:
            if EVERY_AGENT in name and name != EVERY_AGENT:
                message = f'the agent {name!r} matches nobody: write whole names, or "*" alone for all agents'
                self.error("bad-value", message, place)
        return tuple(name for name, _ in agents)

    def _events(self, entries: Entries) -> tuple[str, ...]:
        events = self.texts(entries, "events", '["agent.turn_complete"]')
        for name, place in events:
            if not _EVENT.fullmatch(name):
                near = did_you_mean(name.lower(), LIFECYCLE)
                message = f"{name!r} cannot be an event type{near}: write a lower-case dotted name, 'prefix.*' or '*'"
                self.error("bad-value", message, place)
            elif name not in _KNOWN_EVENTS and (near := did_you_mean(name, _KNOWN_EVENTS, closeness=_TYPO)):
                message = f"{name!r} is not a lifecycle event{near}: ignore this if your runtime emits it"
                self.warn("unknown-event", message, place)
        return tuple(name for name, _ in events)

    def _event_fields(self, node: Node, events: tuple[str, ...]) -> None:
        """Warn of fields of known events that look like a misspelt one: events may have further fields."""
        models = [payload_of(event) for event in events]
        if not models or Payload in models:
            return
        known = {*Event.model_fields, *(name for model in models for name in model.model_fields)}
        for scalar in _texts(node):
            for found in _EVENT_FIELD.finditer(str(scalar.value)):
                name = found[1]
                if name not in known and (near := did_you_mean(name, known, closeness=_TYPO)):
                    message = f"{', '.join(events)} has no field {name!r}{near}: ignore this if your runtime adds it"
                    self.warn("unknown-field", message, scalar.at_offset(found.start(1)))

    def _condition(self, entries: Entries) -> str | None:
        if "condition" not in entries:
            return None
        text = self.text(entries, "condition")
        node = entries["condition"].value
        if text and isinstance(node, Scalar):
            for comment, start in conditions.comments(text):
                self._swallowed(node, comment, start, "condition")
            try:
                for each in conditions.compile_condition(text).cost.classes:
                    self.warn(
                        each,
                        f"{_COSTS[each]}. Beyond {MOST_STEPS} steps for one event the queries are skipped",
                        node.place,
                    )
            except conditions.ConditionError as error:
                self.error("bad-condition", str(error), node.at_offset(error.column - 1))
        return text

    def _inject_as(self, entries: Entries, agents: frozenset[str]) -> str:
        name = self.text(entries, "inject_as")
        if not name:
            return name
        place = entries["inject_as"].value.place
        for other, others, first in self._injected:
            if name == other and (agents & others or EVERY_AGENT in agents | others):
                message = f"{name!r} is injected at line {first.line} already, for the same agent: rename one of them"
                self.warn("duplicate-inject-as", message, place)
                break
        self._injected.append((name, agents, place))
        return name

    def _format(self, entries: Entries, kind: str) -> Format:
        if "format" not in entries:
            return _KINDS.get(kind, "list")
        name = self.text(entries, "format")
        if name and name not in FORMATS:
            message = f"the format {name!r} is unknown{did_you_mean(name, FORMATS)}: write one of {', '.join(FORMATS)}"
            self.error("bad-value", message, entries["format"].value.place)
        if name == "facts" and kind != "graphrag":
            message = "the format 'facts' is for the rows of graphrag: write markdown, or results for a search"
            self.error("bad-value", message, entries["format"].value.place)
        return cast(Format, name)

    def _params(
        self, entries: Entries, query: Node | None, read: Callable[[str], cypher.Cypher], what: str = "query"
    ) -> dict[str, Any]:
        given: Entries = {}
        known = True
        if "params" in entries:
            node = entries["params"].value
            known = isinstance(node, KeyTable)
            if isinstance(node, KeyTable):
                given = node.entries
            else:
                self.wrong_type(node, "params", "a mapping, {} for none")
        values = {name: plain(entry.value) for name, entry in given.items()}
        for name, entry in given.items():
            self._source(name, entry.value)
        if isinstance(query, Scalar) and isinstance(query.value, str) and query.value.strip():
            self._cypher(query, query.value, read, given if known else None, what)
        elif query is None and what != "query":
            for name, entry in given.items():
                self.warn("unused-param", f"no {what} uses ${name}: remove it from params", entry.key)
        return values

    def _source(self, name: str, node: Node) -> Any:
        """Return a value that may be or hold references; report invalid ones."""
        value = plain(node)
        try:
            params.compile_param(value)
        except params.ParamError as error:
            self.error("bad-param", f"{name}: {error}", node.place)
        if isinstance(value, str) and (found := _REFERENCE.search(value, 1)) and not value.startswith("$"):
            message = f"{name}: {found[0]} inside a text is not replaced: pass it alone, and join texts in the query"
            self.warn("reference-in-text", message, node.place)
        elif isinstance(value, str) and _BARE_REFERENCE.fullmatch(value):
            message = f"{name}: {value!r} is a text: write ${value} if you mean the value"
            self.warn("reference-without-dollar", message, node.place)
        return value

    def _swallowed(self, node: Scalar, comment: str, start: int, what: str) -> bool:
        """Report a comment that goes on over lines that YAML has joined; return whether it does."""
        swallowed = node.swallowed(comment)
        if swallowed:
            message = (
                f"the comment {comment[:30]!r} hides all of the {what} behind it, because YAML joins the lines of this "
                "text: write the text under '|', or remove the comment"
            )
            self.error("swallowed-text", message, node.at_offset(start))
        return swallowed

    def _cypher(
        self, node: Scalar, text: str, read: Callable[[str], cypher.Cypher], given: Entries | None, what: str
    ) -> None:
        """Report the problems of a query, and compare its parameters with the given ones (None: unknown)."""
        for token in tokenize(text):
            if token.kind == "comment" and token.text.startswith("//"):
                if self._swallowed(node, token.text, token.start, "query"):
                    return  # other problems would be those of the rest
            elif token.kind == "string" and (found := _QUOTED_REFERENCE.fullmatch(token.text)):
                name = found["name"]
                message = (
                    f"{token.text} is a text here, which nothing replaces: write '{name}: ${found['path']}' in params, "
                    f"and ${name} here, without quotes"
                )
                self.warn("quoted-reference", message, node.at_offset(token.start))
        for problem in read(text).problems:
            code = "cypher-" + problem.code.removeprefix("cypher-")
            place = node.at(problem.line, problem.column)
            self.findings.append(Finding(level=problem.level, code=code, message=problem.message, place=place))
        if given is None:
            return
        tokens = tokenize(text)
        used = {token.identifier: token.start for token in reversed(tokens) if token.kind == "param"}
        for name, start in used.items():
            if name not in given and not name.startswith(OWN_PREFIX):  # reserved names have a finding already
                if found := _REFERENCE.match(text, start):
                    pair = f"'{found[1]}: {found[0]}'"
                    message = f"{found[0]} is in the query: write {pair} in params, and ${found[1]} here"
                    self.error("reference-in-query", message, node.at_offset(start))
                    continue
                message = f"${name} has no value{did_you_mean(name, given)}: add {name!r} to params"
                self.error("unbound-param", message, node.at_offset(start))
        if any(token.kind == "broken" for token in tokens):
            return  # the rest of the text may use any parameter
        for name, entry in given.items():
            if name not in used:
                self.warn("unused-param", f"the {what} does not use ${name}: remove it from params", entry.key)
