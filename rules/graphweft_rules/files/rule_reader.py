"""Reads a rule file by its form, and checks what spans several keys; every finding has a line and column."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from graphweft_contracts.context import Format
from graphweft_contracts.events import LIFECYCLE, Event, Payload, payload_of
from graphweft_contracts.memory import SCOPES, MemoryScope
from graphweft_contracts.search import EMBEDDED, READ, Searched, SearchOptions, SearchQuery, finds_memory
from graphweft_contracts.wire import did_you_mean
from graphweft_rules.cypher import query as cypher
from graphweft_rules.cypher.batch_query import Dialect
from graphweft_rules.cypher.tokens import tokenize
from graphweft_rules.files import rule_form as form
from graphweft_rules.files.findings import Finding
from graphweft_rules.files.form_reader import FormReader, Values
from graphweft_rules.files.forms import Form
from graphweft_rules.files.model import (
    EVERY_AGENT,
    MESSAGE_HISTORY,
    GraphInjectionConfig,
    InjectionGraphrag,
    InjectionQuery,
    InjectionRule,
    InjectionSearch,
    Mutation,
    MutationRule,
    Place,
    TextPlace,
)
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import Broken, Items, KeyTable, Node, Scalar, TableEntry, plain
from graphweft_rules.matching import conditions
from graphweft_rules.matching import parameters as params
from graphweft_rules.matching.clock import OWN_PREFIX
from graphweft_rules.matching.condition_cost import MOST_STEPS, CostClass
from graphweft_rules.matching.searches import filter_fault, parse_retrieval, plain_value, refers, said

_EVENT: Final = re.compile(form.EVENT_PATTERN)
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
    values = checks.table(root, form.RULE_FILE)
    checks.version(values)
    checks.holds_rules(values)
    config = GraphInjectionConfig(
        injection_rules=tuple(map(checks.injection_rule, values.items("injection_rules"))),
        mutation_rules=tuple(map(checks.mutation_rule, values.items("mutation_rules"))),
        files=(path,),
    )
    return RuleFile(config=config, extends=tuple(values.texts("extends")), findings=tuple(checks.findings))


_FORMATS: Final[Mapping[str, Format]] = {"cypher": "list", "search": "results", "graphrag": "facts"}
"""By kind of a query: the default format of its rows. A search of what is remembered has ``memory``."""
_INDEX_NAMES: Final = ("index_name", "fulltext_index_name")
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


def _written(node: Node | None) -> TextPlace | None:
    return node.written if isinstance(node, Scalar) else None


def _names_index(keys: Container[str]) -> bool:
    return any(key in keys for key in _INDEX_NAMES)


class _Checks(FormReader):
    """The checks of one file."""

    def __init__(self, findings: Iterable[Finding], dialects: Iterable[Dialect]) -> None:
        super().__init__(findings)
        self._parse_injection = partial(cypher.parse, role="injection", dialects=tuple(dialects))
        self._parse_mutation = partial(cypher.parse, role="mutation", dialects=tuple(dialects))
        self._names: dict[tuple[str, str], Place] = {}  # (kind, name) of the file's rules
        self._injected: list[tuple[str, frozenset[str], Place]] = []  # inject_as, agents

    # -- the file --

    def version(self, values: Values) -> None:
        node = values.find("version")
        if node is None or isinstance(node, Broken) or plain(node) == form.VERSION:
            return
        value = plain(node)
        if not (isinstance(value, float) and value == float(form.VERSION)):
            self.error("bad-value", f'version {value!r} is unknown: write version: "{form.VERSION}"', node.place)

    def holds_rules(self, values: Values) -> None:
        """Warn of a file without rules, which has no effect."""
        if not self.findings and values.entries.keys().isdisjoint({"extends", "injection_rules", "mutation_rules"}):
            message = (
                "the file has no rules: write injection_rules or mutation_rules, remove the file, or write "
                "`mutation_rules: []` if the workflow's events shall have no effect"
            )
            self.warn("no-rules", message, values.place)

    def injection_rule(self, node: Node) -> InjectionRule:
        values = self.table(node, form.INJECTION_RULE)
        agents = self._agents(values)
        queries = values.items("queries")
        rule = InjectionRule(
            name=self._rule_name(values, "injection"),
            agents=agents,
            condition=self._condition(values),
            priority=values.whole("priority") or 0,
            timeout_ms=values.whole("timeout_ms"),
            max_tokens=values.whole("max_tokens"),
            queries=tuple(self._query(each, agents) for each in queries),
            place=node.place,
        )
        self.unique(queries, "id", "this rule")
        return rule

    def mutation_rule(self, node: Node) -> MutationRule:
        values = self.table(node, form.MUTATION_RULE)
        events, mutations = self._events(values), values.items("mutations")
        self._event_fields(node, events)
        rule = MutationRule(
            name=self._rule_name(values, "mutation"),
            events=events,
            agents=self._agents(values),
            condition=self._condition(values),
            mutations=tuple(map(self._mutation, mutations)),
            place=node.place,
        )
        self.unique(mutations, "id", "this rule")
        return rule

    def _query(self, node: Node, agents: tuple[str, ...]) -> InjectionQuery:
        values = self.table(node, form.QUERY)
        kind = next((each for each in form.KINDS if each in values), "cypher")
        search: InjectionSearch | None = None
        graphrag: InjectionGraphrag | None = None
        text = values.find("cypher")
        if "graphrag" in values:
            graphrag = self._graphrag(values.entries["graphrag"].value)
            params = self._params(values, None, self._parse_injection)
            if "params" in values:
                message = "graphrag takes no params: remove them"
                self.error("conflicting-keys", message, values.entries["params"].key)
        elif "search" in values:
            search, text = self._search(values.entries["search"].value, form.SEARCH)
            params = self._params(values, text, parse_retrieval, "retrieval_query")
        else:
            params = self._params(values, text, self._parse_injection)
        return InjectionQuery(
            id=values.text("id"),
            cypher=values.text("cypher") if "cypher" in values else None,
            search=search,
            graphrag=graphrag,
            params=params,
            inject_as=self._inject_as(values, frozenset(agents)),
            format=self._format(values, kind, search),
            max_results=values.whole("max_results"),
            place=node.place,
            written=_written(text),
        )

    def _graphrag(self, node: Node) -> InjectionGraphrag:
        """Return the ``graphrag`` of a query; its search inherits ``query`` and ``memory``."""
        values = self.table(node, form.GRAPHRAG)
        query, memory = self._searched(values), self._scopes(values)
        count = values.whole("message_history_count") or MESSAGE_HISTORY
        search: InjectionSearch | None = None
        if "search" in values:
            above = {"query"} if memory is None else {"query", "memory"}
            search, _ = self._search(values.entries["search"].value, form.SEEDING_SEARCH, frozenset(above))
            if search.query is None:
                search = replace(search, query=query, message_history_count=count)
            if search.memory is None and not _names_index(search.options):
                search = replace(search, memory=memory)
        return InjectionGraphrag(
            query=query,
            seeds=self._seeds(values.entries["seeds"].value) if "seeds" in values else None,
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

    def _search(self, node: Node, of: Form, above: frozenset[str] = frozenset()) -> tuple[InjectionSearch, Node | None]:
        """Return a search and the node of its ``retrieval_query``; the keys ``above`` are inherited."""
        values = self.table(node, of)
        if isinstance(node, KeyTable):
            self._search_keys(values, above)
        options = {key: value for key in form.OPTIONS if (value := self._option(values, key)) is not None}
        search = InjectionSearch(
            memory=self._scopes(values),
            query=self._searched(values),
            message_history_count=values.whole("message_history_count") or MESSAGE_HISTORY,
            options=cast("SearchOptions", options),
            filters={key: self._filter(values, key) for key in form.FILTERS if key in values},
            dimensions=values.whole("dimensions"),
            retrieval_query=values.text("retrieval_query") if "retrieval_query" in values else None,
            places={key: values.place_of(key) for key in (*_INDEX_NAMES, "dimensions") if key in values},
        )
        return search, values.find("retrieval_query")

    def _option(self, values: Values, key: str) -> Any:
        """Return an option of a search that ``SearchQuery`` accepts alone; None if there is none."""
        value = values.right.get(key)
        if isinstance(value, str) and value.startswith("$"):
            message = f"{key} is {value!r}: it must be the name of an index, which is the same for every request"
            self.error("bad-value", message, values.place_of(key))
            return None
        if key in _INDEX_NAMES and value is not None:
            try:
                SearchQuery.model_validate({"index_name": value, key: value})
            except ValidationError as error:
                self.error("bad-value", said(error), values.place_of(key))
                return None
        return value

    def _read_keys(self, values: Values, of: Searched, above: frozenset[str]) -> None:
        """Report what a search of a kind that is read as a whole cannot have."""
        if "query" in above:
            message = f"a {of} is read as a whole, and is nothing to start from: remove of"
            self.error("conflicting-keys", message, values.entries["of"].key)
        for key in values.entries:
            if key in form.NOT_READ:
                self.error("conflicting-keys", f"a {of} is read as a whole: remove {key}", values.entries[key].key)
        memory = values.entries.get("memory")
        if memory is not None and isinstance(memory.value, KeyTable) and "user_id" not in memory.value.entries:
            message = f"a {of} is of one user: write for example memory: {{user_id: $workflow.user_id}}"
            self.error("missing-key", message, memory.key)

    def _filter(self, values: Values, key: str) -> Any:
        """Return a filter of a search: a value that ``SearchQuery`` accepts, or one with references."""
        value = self._source(key, values.entries[key].value)
        if not refers(value):
            if fault := filter_fault(key, plain_value(value)):
                self.error("bad-value", f"{fault}: leave {key} out, or say what it limits", values.place_of(key))
                return value
            try:
                SearchQuery.model_validate({"memory": {"user_id": "any"}, key: plain_value(value)})
            except ValidationError as error:
                self.error("bad-value", said(error), values.place_of(key))
        return value

    def _search_keys(self, values: Values, above: frozenset[str]) -> None:
        """Report missing keys, and keys that others make useless."""
        asks, of = values.text("index_type"), cast("Searched", values.text("of") or "all")
        scoped = "memory" in values or ("memory" in above and not _names_index(values.entries))
        asked = "query" in values or "query" in above
        if of not in EMBEDDED:
            if not ("memory" in values or "memory" in above):
                message = (
                    f"{of} are searched within a scope only: write for example memory: {{user_id: $workflow.user_id}}"
                )
                self.error("missing-key", message, values.place)
                return
            if asks in {"vector", "hybrid"}:
                message = f"{of} have no vectors: remove index_type, or write fulltext"
                self.error("conflicting-keys", message, values.entries["index_type"].key)
        if of in READ:
            self._read_keys(values, of, above)
            return
        if "dimensions" in values and ("index_name" not in values or asks == "fulltext"):
            message = "dimensions are of the vector index that index_name names: name one, or remove the key"
            self.error("conflicting-keys", message, values.entries["dimensions"].key)
        if scoped:
            for key in _INDEX_NAMES:
                if key in values:
                    named = "memories" if of == "all" else of
                    message = f"{named} have indexes of their own: leave index_name and fulltext_index_name out"
                    self.error("conflicting-keys", message, values.entries[key].key)
            if "index_type" in values and not asked:
                message = f"query is required when index_type={asks!r}: write for example query: $context.messages"
                self.error("missing-key", message, values.place)
            return
        if not asked:
            self.error("missing-key", "query is required: write for example query: $context.messages", values.place)
        if asks == "hybrid" and "fulltext_index_name" not in values:
            message = "fulltext_index_name is required when index_type='hybrid'"
            self.error("missing-key", message, values.place_of("index_type"))
        if asks != "hybrid" and "fulltext_index_name" in values:
            message = "fulltext_index_name needs index_type='hybrid': remove it, or write index_type: hybrid"
            self.warn("unused-key", message, values.entries["fulltext_index_name"].key)

    def _scopes(self, above: Values) -> dict[str, Any] | None:
        """Return the scopes of a search for memories: at least one, each a text or a reference."""
        node = above.find("memory")
        if node is None:
            return None
        values = self.table(node, form.MEMORY)
        if isinstance(node, KeyTable) and not node.entries:
            self.error("missing-key", f"a memory needs a scope: give at least one of {', '.join(SCOPES)}", node.place)
        scopes: dict[str, Any] = {}
        for name in values.right:
            scopes[name] = value = self._source(name, values.entries[name].value)
            try:
                MemoryScope(**{name: value})
            except ValidationError as error:
                self.error("bad-value", said(error), values.place_of(name))
        return scopes

    def _searched(self, values: Values) -> Any:
        """Return the ``query`` of a search: a text, a list of messages, or a reference to one of them."""
        if "query" not in values.right:
            return None
        node = values.entries["query"].value
        for item in values.items("query") if isinstance(node, Items) else ():
            if not (isinstance(item, Scalar) and isinstance(item.value, str) and item.value.startswith("$")):
                self.table(item, form.MESSAGE)
        return self._source("query", node)

    def _mutation(self, node: Node) -> Mutation:
        values = self.table(node, form.MUTATION)
        return Mutation(
            id=values.text("id"),
            cypher=values.text("cypher"),
            params=self._params(values, values.find("cypher"), self._parse_mutation),
            place=node.place,
            written=_written(values.find("cypher")),
        )

    # -- keys with rules of their own --

    def _rule_name(self, values: Values, kind: str) -> str:
        name = values.text("name")
        if name:
            place = values.place_of("name")
            first = self._names.setdefault((kind, name), place)
            if first is not place:
                message = f"the {kind} rule {name!r} is at line {first.line} already: give each its own name"
                self.error("duplicate-name", message, place)
        return name

    def _agents(self, values: Values) -> tuple[str, ...]:
        agents = values.texts("agents")
        for name, place in agents:
            if EVERY_AGENT in name and name != EVERY_AGENT:
                message = f'the agent {name!r} matches nobody: write whole names, or "*" alone for all agents'
                self.error("bad-value", message, place)
        return tuple(name for name, _ in agents)

    def _events(self, values: Values) -> tuple[str, ...]:
        events = values.texts("events")
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

    def _condition(self, values: Values) -> str | None:
        node, text = values.find("condition"), values.text("condition")
        if node is None:
            return None
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

    def _inject_as(self, values: Values, agents: frozenset[str]) -> str:
        name = values.text("inject_as")
        if not name:
            return name
        place = values.place_of("inject_as")
        for other, others, first in self._injected:
            if name == other and (agents & others or EVERY_AGENT in agents | others):
                message = f"{name!r} is injected at line {first.line} already, for the same agent: rename one of them"
                self.warn("duplicate-inject-as", message, place)
                break
        self._injected.append((name, agents, place))
        return name

    def _format(self, values: Values, kind: str, search: InjectionSearch | None) -> Format:
        usual = _FORMATS[kind]
        if search is not None and finds_memory(
            search.memory is not None, search.options.get("of", "all"), search.retrieval_query
        ):
            usual = "memory"
        name = values.text("format") or usual
        if name == "facts" and kind != "graphrag":
            message = "the format 'facts' is for the rows of graphrag: write markdown, or results for a search"
            self.error("bad-value", message, values.place_of("format"))
        return cast(Format, name)

    def _params(
        self, above: Values, query: Node | None, read: Callable[[str], cypher.Cypher], what: str = "query"
    ) -> dict[str, Any]:
        given: Mapping[str, TableEntry] = {}
        node = above.find("params")
        known = node is None or isinstance(node, KeyTable)
        if isinstance(node, KeyTable):
            given = node.entries
        elif node is not None:
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
        self,
        node: Scalar,
        text: str,
        read: Callable[[str], cypher.Cypher],
        given: Mapping[str, TableEntry] | None,
        what: str,
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
