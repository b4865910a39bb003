"""The JSON Schema of ``graph_injection.yaml`` and of the files that it extends.

It accepts each file that ``files.schema`` accepts. It knows less: nothing of Cypher, of CEL, or of names that repeat.
"""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts.events import LIFECYCLE
from graphweft_contracts.memory import SCOPE_PATTERN, SCOPES, MemoryScope
from graphweft_contracts.search import EMBEDDED, INDEX_TYPES, MOST_RESULTS, SEARCHED
from graphweft_rules.files.model import FORMATS, MESSAGE_HISTORY, TOP_K
from graphweft_rules.files.schema import EVENT_PATTERN, VERSION
from graphweft_rules.matching.parameters import WORKFLOW_FIELDS
from graphweft_rules.text_limits import MOST_DIMENSIONS
from tools.rule_schemas.keywords import (
    NOT_BLANK,
    Schema,
    choice,
    document,
    matching,
    table,
    text,
    texts,
    whole,
)

_REFERENCE: Final = rf"^(?!\$)|^\$\$|^\$(context|event)\.[^. ]|^\$workflow\.({'|'.join(WORKFLOW_FIELDS)})$"
_REFERENCE_MESSAGE: Final = (
    f"Not a reference: write $context.x, $event.x or $workflow. with {', '.join(WORKFLOW_FIELDS)}; for a text that "
    "starts with $ write $$."
)
_VALUE: Final[Schema] = {"$ref": "#/definitions/value"}
_REFERENCES: Final = "`$context.x`, `$event.x`, `$workflow.chat_id`"

_AGENT: Final[Schema] = text(
    "The name of an agent, or `*` for all.",
    **matching(r"^(\*|[^*]*[^* \t\r\n][^*]*)$", 'Write a whole name, or "*" alone for all agents.'),
)
_EVENT: Final[Schema] = text(
    "An event type such as `order.paid`, `prefix.*` for a family of types, or `*` for all.",
    **matching(f"^({EVENT_PATTERN})$", "Not an event type: write a lower-case dotted name, 'prefix.*' or '*'."),
    examples=list(LIFECYCLE),
)
_CONDITION: Final[Schema] = text(
    "A condition in CEL; the rule applies if it is true. If a reference does not exist, the condition is false.",
    examples=["$event.success == true", "has($context.phase) && $context.phase != 'done'"],
)
_PARAMS: Final[Schema] = {
    "description": f"The value of each `$name` of the query: a literal, or a reference such as {_REFERENCES}. "
    "`$$` begins a text that starts with `$`. If a reference does not exist, only this query is skipped.",
    "type": "object",
    "additionalProperties": _VALUE,
}


def rule_file() -> Schema:
    """Return the schema of a rule file."""
    path = text("The path of a rule file, relative to this file.")
    content = table(
        "The rules of a workflow: what to write into the graph after an event, and what to look up before a turn.",
        {
            "extends": {
                "description": "Rule files to inherit from, relative to this file. Their rules come first; a rule of "
                "this file replaces one of the same name.",
                "type": ["string", "array"],
                **NOT_BLANK,
                "items": path,
            },
            "version": {
                "description": "The version of the format.",
                "enum": [VERSION, float(VERSION)],
                "default": VERSION,
            },
            "mutation_rules": {
                "description": "What to write into the graph after an event, in this order.",
                "type": "array",
                "items": _mutation_rule(),
            },
            "injection_rules": {
                "description": "What to look up before the turn of an agent. The context has the blocks in this order.",
                "type": "array",
                "items": _injection_rule(),
            },
        },
    )
    definitions: dict[str, Schema] = {
        "value": {**matching(_REFERENCE, _REFERENCE_MESSAGE), "items": _VALUE, "additionalProperties": _VALUE},
        "query_text": _query_text(),
        "memory": _memory(),
    }
    return document("Rules of graphweft", {**content, "definitions": definitions})


def _mutation_rule() -> Schema:
    mutation = table(
        "A query that writes.",
        {
            "id": text("The name of the mutation, unique in its rule."),
            "cypher": text("The query in Cypher. Values come from `params`: write `$name`."),
            "params": _PARAMS,
        },
        ("id", "cypher"),
    )
    return table(
        "What to write into the graph after events of some types.",
        {
            "name": text("The name of the rule, unique among the mutation rules."),
            "events": texts("The event types after which the mutations run.", _EVENT),
            "agents": texts("Only events of these agents. Without this key, all events of the types.", _AGENT),
            "condition": _CONDITION,
            "mutations": texts("The queries, in this order.", mutation),
        },
        ("name", "events", "mutations"),
    )


def _injection_rule() -> Schema:
    return table(
        "What to look up before the turn of an agent.",
        {
            "name": text("The name of the rule, unique among the injection rules."),
            "agents": texts('The agents whose turns get the blocks; `["*"]` for all.', _AGENT),
            "condition": _CONDITION,
            "priority": whole(
                "If the tokens of a request do not suffice, rules with a higher priority get theirs first.", default=0
            ),
            "timeout_ms": whole(
                "The time limit of each query in milliseconds; never more than that of the request.", minimum=1
            ),
            "max_tokens": whole("The limit of tokens of all blocks of the rule together.", minimum=1),
            "queries": texts("The queries; each makes one block.", _query()),
        },
        ("name", "agents", "queries"),
    )


def _query() -> Schema:
    return table(
        "A query that reads: `cypher`, `search` or `graphrag`. Its rows become one block of the context.",
        {
            "id": text("The name of the query, unique in its rule."),
            "cypher": text("The query in Cypher. It may only read. Values come from `params`: write `$name`."),
            "search": _search(
                "Find the best matches among the memories of a scope, or in an index of the graph.", inherits=False
            ),
            "graphrag": _graphrag(),
            "params": _PARAMS,
            "inject_as": text("The name of the block. It becomes its heading."),
            "format": choice(
                "How the rows are written. Default: `list`, for a search `results`, for graphrag `facts`.", FORMATS
            ),
            "max_results": whole("The limit of rows. The first ones are kept.", minimum=1),
        },
        ("id", "inject_as"),
        {
            "oneOf": [{"required": [kind]} for kind in ("cypher", "search", "graphrag")],
            "if": {"required": ["graphrag"]},
            "then": {"properties": {"params": False}},
            "else": {"properties": {"format": {"not": {"const": "facts"}}}},
        },
    )


def _search(description: str, *, inherits: bool) -> Schema:
    """Return the schema of a search. One that inherits takes ``query`` and ``memory`` from the ``graphrag`` above."""
    index = text(
        "The name of an index, the same for every request.",
        **matching(r"^(?!\$)", "Write the name of an index; it cannot be a reference."),
    )
    keys: dict[str, Schema] = {
        "memory": {"$ref": "#/definitions/memory"},
        "of": choice("What to find in the scope.", SEARCHED, default="all"),
        "query": {"$ref": "#/definitions/query_text"},
        "index_type": choice(
            "`vector` searches by meaning, `fulltext` by words, `hybrid` by both. Default: `vector` for an index; for "
            "a scope `hybrid` with an embedder and `fulltext` without one.",
            INDEX_TYPES,
        ),
        "index_name": {
            **index,
            "description": "The index to search if there is no `memory`: its name, or `Label.property`.",
        },
        "fulltext_index_name": {**index, "description": "The fulltext index of a hybrid search."},
        "dimensions": whole(
            "The length of the vectors in `index_name`, which a vector index needs that rules make.",
            minimum=1,
            maximum=MOST_DIMENSIONS,
        ),
        "top_k": whole("The limit of results.", minimum=1, maximum=MOST_RESULTS, default=TOP_K),
        "message_history_count": whole(
            "How many messages of a `query` that is a list are used.", minimum=1, default=MESSAGE_HISTORY
        ),
        "filter_stop_words": {
            "description": 'Whether a search by words ignores words such as "the".',
            "type": "boolean",
            "default": True,
        },
    }
    in_memory: Schema = {"properties": {"index_name": False, "fulltext_index_name": False, "dimensions": False}}
    if inherits:
        return table(description, keys, more={"if": {"required": ["memory"]}, "then": in_memory})
    keys["retrieval_query"] = text(
        "Cypher that continues from `node` and `score` and returns at least `text` and `score`. End it with "
        "`ORDER BY score DESC`. Its values come from `params` of the query."
    )
    needs_memory: Schema = {"required": ["of"], "properties": {"of": {"enum": _without_vectors()}}}
    return table(
        description,
        keys,
        more={
            "if": {"required": ["memory"]},
            "then": {**in_memory, "dependencies": {"index_type": ["query"]}},
            "else": {
                "required": ["query"],
                "if": {"required": ["index_type"], "properties": {"index_type": {"const": "hybrid"}}},
                "then": {"required": ["fulltext_index_name"]},
            },
            "allOf": [
                {
                    "if": needs_memory,
                    "then": {"required": ["memory"], "properties": {"index_type": {"enum": ["fulltext"]}}},
                }
            ],
        },
    )


def _without_vectors() -> list[str]:
    return [name for name in SEARCHED if name not in EMBEDDED]


def _graphrag() -> Schema:
    return table(
        "Find facts of the graph about the things that a question names, and about results that are known already.",
        {
            "query": {"$ref": "#/definitions/query_text"},
            "seeds": {
                "description": "Results to start from: a list of ids or of maps with `id`, or a reference to one.",
                "allOf": [_VALUE],
            },
            "search": _search(
                "A search whose results are seeds as well. It uses the `query` and the `memory` of graphrag unless it "
                "has its own.",
                inherits=True,
            ),
            "memory": {"$ref": "#/definitions/memory"},
            "message_history_count": whole(
                "How many messages of a `query` that is a list are used.", minimum=1, default=MESSAGE_HISTORY
            ),
        },
        ("query",),
    )


def _query_text() -> Schema:
    message = table(
        "A message.",
        {
            "role": {"description": "Who speaks: `user` or `assistant`; messages of other roles are not used."},
            "text": {"description": "What the message says."},
            "content": {"description": "The same as `text`."},
        },
        ("role",),
    )
    return {
        "description": "What to search for: a text, a list of messages, or a reference such as `$context.messages`.",
        "type": ["string", "array"],
        **NOT_BLANK,
        "minItems": 1,
        "items": {
            "if": {"type": "string"},
            "then": matching(r"^\$", "Write a message with a role, or a reference."),
            "else": message,
        },
        "allOf": [_VALUE],
    }


def _memory() -> Schema:
    fields = MemoryScope.model_fields
    scopes: dict[str, Any] = {
        name: {
            "description": f"{fields[name].description} A text, or a reference such as `$workflow.user_id`.",
            "type": "string",
            **matching(SCOPE_PATTERN, "Write a text or a reference, without blanks at its ends."),
            "allOf": [_VALUE],
        }
        for name in SCOPES
    }
    return table("The scope: at least one key. A result must match all of them.", scopes, more={"minProperties": 1})
