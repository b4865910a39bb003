"""The format of ``graph_injection.yaml`` and of the files that it extends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast, get_args, get_origin

from graphweft_contracts.events import LIFECYCLE
from graphweft_contracts.memory import SCOPE_PATTERN, SCOPES, MemoryScope
from graphweft_contracts.search import EMBEDDED, READ, SEARCHED, MemoryFilters, SearchOptions, SearchQuery
from graphweft_rules.files.forms import NOT_BLANK, FlagKey, Form, Key, ListKey, NumberKey, Pattern, SectionKey, TextKey
from graphweft_rules.files.model import FORMATS, MESSAGE_HISTORY
from graphweft_rules.matching.parameters import WORKFLOW_FIELDS
from graphweft_rules.text_limits import MOST_DIMENSIONS

VERSION: Final = "1.0"
EVENT_PATTERN: Final = r"\*|[a-z0-9_]+(?:\.[a-z0-9_]+)*\.(?:[a-z0-9_]+|\*)"
"""An event type, ``prefix.*`` or ``*``, as a whole."""
KINDS: Final = ("cypher", "search", "graphrag")
"""The kinds of queries."""

_REFERENCE: Final = Pattern(
    rf"^(?!\$)|^\$\$|^\$(context|event)\.[^. ]|^\$workflow\.({'|'.join(WORKFLOW_FIELDS)})$",
    f"Not a reference: write $context.x, $event.x or $workflow. with {', '.join(WORKFLOW_FIELDS)}; for a text that "
    "starts with $ write $$.",
)
_VALUE: Final[Mapping[str, Any]] = {"$ref": "#/definitions/value"}
_HISTORY: Final = NumberKey(
    "How many messages of a `query` that is a list are used.", least=1, default=MESSAGE_HISTORY
)  # fmt: skip

_AGENT: Final = TextKey(
    "The name of an agent, or `*` for all.",
    pattern=Pattern(r"^(\*|[^*]*[^* \t\r\n][^*]*)$", 'Write a whole name, or "*" alone for all agents.'),
)
_AGENTS: Final = 'a list, ["AgentA"], or ["*"] for all'
_EVENT: Final = TextKey(
    "An event type such as `order.paid`, `prefix.*` for a family of types, or `*` for all.",
    pattern=Pattern(f"^({EVENT_PATTERN})$", "Not an event type: write a lower-case dotted name, 'prefix.*' or '*'."),
    editor={"examples": list(LIFECYCLE)},
)
_CONDITION: Final = TextKey(
    "A condition in CEL; the rule applies if it is true. If a reference does not exist, the condition is false.",
    editor={"examples": ["$event.success == true", "has($context.phase) && $context.phase != 'done'"]},
)
_PARAMS: Final = Key(
    "The value of each `$name` of the query: a literal, or a reference such as `$context.x`, `$event.x`, "
    "`$workflow.chat_id`. `$$` begins a text that starts with `$`. If a reference does not exist, only this query is "
    "skipped.",
    editor={"type": "object", "additionalProperties": _VALUE},
)

MESSAGE: Final = Form(
    name="a message",
    meaning="A message.",
    keys={
        "role": Key("Who speaks: `user` or `assistant`; messages of other roles are not used.", required=True),
        "text": Key("What the message says."),
        "content": Key("The same as `text`."),
    },
)
_QUERY_TEXT: Final = ListKey(
    "What to search for: a text, a list of messages, or a reference such as `$context.messages`.",
    text=TextKey("A message.", pattern=Pattern(r"^\$", "Write a message with a role, or a reference.")),
    form=MESSAGE,
    alone=True,
    wanted="a text or a list of messages",
    shared="query_text",
    editor={"allOf": [_VALUE]},
)

MEMORY: Final = Form(
    name="memory",
    meaning="The scope: at least one key. A result must match all of them.",
    keys={
        name: TextKey(
            f"{MemoryScope.model_fields[name].description} A text, or a reference such as `$workflow.user_id`.",
            pattern=Pattern(SCOPE_PATTERN, "Write a text or a reference, without blanks at its ends."),
            wanted="a text, or a reference such as $workflow.user_id",
            editor={"allOf": [_VALUE]},
        )
        for name in SCOPES
    },
    editor={"minProperties": 1},
)
_MEMORY: Final = SectionKey(MEMORY.meaning, form=MEMORY, shared="memory")


def _option(name: str, pattern: Pattern = NOT_BLANK) -> Key:
    """Return the key for a field of ``SearchQuery``: its kind, bounds, default and meaning are those of the field."""
    field = SearchQuery.model_fields[name]
    meaning, default = field.description or "", field.default
    kinds = [each for each in get_args(field.annotation) if each is not type(None)] or [field.annotation]
    kind: Any = field.annotation if get_origin(field.annotation) is Literal else kinds[0]
    if get_origin(kind) is Literal:
        return TextKey(meaning, names=get_args(kind), default=default)
    if kind is bool:
        return FlagKey(meaning, default=default)
    if kind is int:
        bounds = cast("Mapping[str, Any]", field.json_schema_extra)
        return NumberKey(meaning, least=bounds["minimum"], most=bounds["maximum"], default=default)
    return TextKey(meaning, pattern=pattern, default=default)


_INDEX: Final = Pattern(r"^(?!\$)", "Write the name of an index; it cannot be a reference.")
_NOT_IN_RULES: Final = frozenset({"without_embedder"})
OPTIONS: Final[Mapping[str, Key]] = {
    name: _option(name, _INDEX if name.endswith("index_name") else NOT_BLANK)
    for name in SearchOptions.__annotations__
    if name not in _NOT_IN_RULES
}
"""The keys of a search that say how to search, with the same value for every request."""
FILTERS: Final[Mapping[str, Key]] = {
    name: Key(
        f"{SearchQuery.model_fields[name].description} A value, or a reference such as `$context.{name}`.",
        editor={"allOf": [_VALUE]},
    )
    for name in MemoryFilters.__annotations__
}
"""The keys of a search that say which records of its scope it may find."""
_IN_MEMORY: Final = {"properties": {"index_name": False, "fulltext_index_name": False, "dimensions": False}}
_NEEDS_INDEX: Final = {
    "if": {"required": ["dimensions"]},
    "then": {"required": ["index_name"], "properties": {"index_type": {"not": {"const": "fulltext"}}}},
}
_NEEDS_MEMORY: Final = {
    "required": ["of"],
    "properties": {"of": {"enum": [name for name in SEARCHED if name not in EMBEDDED]}},
}
NOT_READ: Final = tuple(
    name
    for name in ("query", "message_history_count", *OPTIONS, *FILTERS, "dimensions", "retrieval_query")
    if name not in {"of", "top_k", "as_of"}
)
"""The keys that what is read as a whole cannot have."""
_IS_READ: Final = {"required": ["of"], "properties": {"of": {"enum": sorted(READ)}}}
SEARCH: Final = Form(
    name="a search",
    meaning="Find the best matches among the memories of a scope, or in an index of the graph.",
    keys={
        "memory": _MEMORY,
        "query": _QUERY_TEXT,
        "message_history_count": _HISTORY,
        **OPTIONS,
        **FILTERS,
        "dimensions": NumberKey(
            "The length of the vectors in `index_name`, which a vector index needs that rules make.",
            least=1,
            most=MOST_DIMENSIONS,
        ),
        "retrieval_query": _option("retrieval_query"),
    },
    editor={
        "if": {"required": ["memory"]},
        "then": {**_IN_MEMORY, "dependencies": {"index_type": ["query"]}},
        "else": {
            "required": ["query"],
            "properties": {"fill": False, **dict.fromkeys(FILTERS, False)},
            "if": {"required": ["index_type"], "properties": {"index_type": {"const": "hybrid"}}},
            "then": {"required": ["fulltext_index_name"]},
        },
        "allOf": [
            {
                "if": _NEEDS_MEMORY,
                "then": {"required": ["memory"], "properties": {"index_type": {"enum": ["fulltext"]}}},
            },
            _NEEDS_INDEX,
            {
                "if": _IS_READ,
                "then": {
                    "properties": {
                        "memory": {"required": ["user_id"]},
                        **dict.fromkeys(NOT_READ, False),
                    }
                },
            },
        ],
    },
)
SEEDING_SEARCH: Final = replace(
    SEARCH,
    name="the search of graphrag",
    meaning="A search whose results are seeds as well. It uses the `query` and the `memory` of graphrag unless it has "
    "its own.",
    keys={name: key for name, key in SEARCH.keys.items() if name not in {"retrieval_query", "fill"}},
    editor={
        "if": {"required": ["memory"]},
        "then": _IN_MEMORY,
        "allOf": [_NEEDS_INDEX, {"not": _IS_READ}],
    },
)
GRAPHRAG: Final = Form(
    name="graphrag",
    meaning="Find facts of the graph about the things that a question names, and about results that are known already.",
    keys={
        "query": replace(_QUERY_TEXT, required=True),
        "seeds": Key(
            "Results to start from: a list of ids or of maps with `id`, or a reference to one.",
            editor={"allOf": [_VALUE]},
        ),
        "search": SectionKey(SEEDING_SEARCH.meaning, form=SEEDING_SEARCH),
        "memory": _MEMORY,
        "message_history_count": _HISTORY,
    },
)
QUERY: Final = Form(
    name="a query",
    meaning="A query that reads: `cypher`, `search` or `graphrag`. Its rows become one block of the context.",
    keys={
        "id": TextKey("The name of the query, unique in its rule.", required=True),
        "cypher": TextKey("The query in Cypher. It may only read. Values come from `params`: write `$name`."),
        "search": SectionKey(SEARCH.meaning, form=SEARCH),
        "graphrag": SectionKey(GRAPHRAG.meaning, form=GRAPHRAG),
        "params": _PARAMS,
        "inject_as": TextKey("The name of the block. It becomes its heading.", required=True),
        "format": TextKey(
            "How the rows are written. Default: `list`, for a search `results` or, of what is remembered, `memory`, "
            "for graphrag `facts`.",
            names=FORMATS,
        ),
        "max_results": NumberKey("The limit of rows. The first ones are kept.", least=1),
    },
    one_of=KINDS,
    editor={
        "if": {"required": ["graphrag"]},
        "then": {"properties": {"params": False}},
        "else": {"properties": {"format": {"not": {"const": "facts"}}}},
    },
)
INJECTION_RULE: Final = Form(
    name="an injection rule",
    meaning="What to look up before the turn of an agent.",
    keys={
        "name": TextKey("The name of the rule, unique among the injection rules.", required=True),
        "agents": ListKey(
            'The agents whose turns get the blocks; `["*"]` for all.', text=_AGENT, wanted=_AGENTS, required=True
        ),
        "condition": _CONDITION,
        "priority": NumberKey(
            "If the tokens of a request do not suffice, rules with a higher priority get theirs first.", default=0
        ),
        "timeout_ms": NumberKey(
            "The time limit of each query in milliseconds; never more than that of the request.", least=1
        ),
        "max_tokens": NumberKey("The limit of tokens of all blocks of the rule together.", least=1),
        "queries": ListKey("The queries; each makes one block.", form=QUERY, required=True),
    },
)
MUTATION: Final = Form(
    name="a mutation",
    meaning="A query that writes.",
    keys={
        "id": TextKey("The name of the mutation, unique in its rule.", required=True),
        "cypher": TextKey("The query in Cypher. Values come from `params`: write `$name`.", required=True),
        "params": _PARAMS,
    },
)
MUTATION_RULE: Final = Form(
    name="a mutation rule",
    meaning="What to write into the graph after events of some types.",
    keys={
        "name": TextKey("The name of the rule, unique among the mutation rules.", required=True),
        "events": ListKey(
            "The event types after which the mutations run.",
            text=_EVENT,
            wanted='a list, ["agent.turn_complete"]',
            required=True,
        ),
        "agents": ListKey(
            "Only events of these agents. Without this key, all events of the types.", text=_AGENT, wanted=_AGENTS
        ),
        "condition": _CONDITION,
        "mutations": ListKey("The queries, in this order.", form=MUTATION, required=True),
    },
)
RULE_FILE: Final = Form(
    name="a rule file",
    meaning="The rules of a workflow: what to write into the graph after an event, and what to look up before a turn.",
    keys={
        "extends": ListKey(
            "Rule files to inherit from, relative to this file. Their rules come first; a rule of this file replaces "
            "one of the same name.",
            text=TextKey("The path of a rule file, relative to this file.", wanted="a path, a string"),
            wanted="a path or a list of paths",
            alone=True,
            may_be_empty=True,
        ),
        "version": Key("The version of the format.", default=VERSION, editor={"enum": [VERSION, float(VERSION)]}),
        "mutation_rules": ListKey(
            "What to write into the graph after an event, in this order.", form=MUTATION_RULE, may_be_empty=True
        ),
        "injection_rules": ListKey(
            "What to look up before the turn of an agent. The context has the blocks in this order.",
            form=INJECTION_RULE,
            may_be_empty=True,
        ),
    },
)
DEFINITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "value": {
        "pattern": _REFERENCE.regex,
        "patternErrorMessage": _REFERENCE.fault,
        "items": _VALUE,
        "additionalProperties": _VALUE,
    },
}
"""What editors check of values that may be or hold references."""
