"""The JSON Schema of rule tests, files ``*_test.yaml``.

It accepts each file that ``rule_tests.reader`` accepts. It knows less: nothing of files of events, of the payloads of
lifecycle events, or of names that repeat.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from graphweft_contracts import DeadLetterReason, ReasonCode
from graphweft_contracts.events import APP_ID_PATTERN, LIFECYCLE
from graphweft_rules.rule_tests.reader import DEFAULT_BUDGET_MS, MOST_BUDGET_MS
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

_EVENT_TYPE: Final = matching(
    r"^[a-z0-9_]+(\.[a-z0-9_]+)+$", "Not an event type: write a lower-case name with dots, such as order.paid."
)
_MUTATION: Final = matching(r"[^ \t\r\n]*/", "Write both names, rule/mutation.")
_PLAIN: Final[Schema] = {"type": "object"}


def rule_test_file() -> Schema:
    """Return the schema of a file of rule tests."""
    content = table(
        "Tests of the rules in this folder: events, and what they must lead to. `graphweft test` runs them.",
        {"tests": texts("The cases. Each has an app of its own, so they do not see one another.", _case())},
        ("tests",),
    )
    return document("Rule tests of graphweft", content)


def _case() -> Schema:
    return table(
        "Events, and what they must lead to. Without an expectation, each event must take effect.",
        {
            "name": text("The name of the case, unique in the file."),
            "workflow": text(
                "The workflow of events and requests that name none. Without this key: the folder of the file."
            ),
            "events": {
                "description": "What happens, in this order: a list of events and of paths, or one path. A path leads "
                "to a file with a JSON event on each line; it is relative to this file.",
                "type": ["string", "array"],
                **NOT_BLANK,
                "items": {"if": {"type": "string"}, "then": NOT_BLANK, "else": _event()},
            },
            "statements": _list(
                "All mutations that run, in this order, and mutations that are skipped. Needs no server.", _statement()
            ),
            "graph": _list("What the graph contains after all events.", _graph()),
            "context": _list("What agents get after all events.", _context()),
            "dead_letters": _list("What has no effect, and why.", _letter()),
            "unmatched": texts(
                "Types of events that no rule needs to be for; `prefix.*` for a family of types, `*` for all.",
                text("An event type.", examples=["agent.turn_start", "tool.*"]),
            ),
        },
        ("name",),
    )


def _event() -> Schema:
    return table(
        "An event. Only its type is required.",
        {
            "type": text("What has happened, such as `order.paid`.", **_EVENT_TYPE, examples=list(LIFECYCLE)),
            "chat": _name("The chat. Default: `test`."),
            "user": _name("The user."),
            "agent": {"description": "The agent: `agent_name` in `data`."},
            "context": {**_PLAIN, "description": "The context variables, `$context.*` in rules: `context` in `data`."},
            "data": {**_PLAIN, "description": "What is known of it: `$event.*` in rules."},
            "time": _time("When it happened. Default: one second after the event before."),
            "workflow": _name("The workflow whose rules apply. Default: that of the case."),
            "id": _name("With `source`, what names it for ever. Default: `event-1`, `event-2`, …"),
            "source": _name("Who says that it happened. Default: `/test`."),
            "appid": _text_or_null(
                "Has no effect here; the events of a case may not name two.", pattern=APP_ID_PATTERN
            ),
            "chatid": _name("The same as `chat`."),
            "userid": _name("The same as `user`."),
            "subject": _name("What it is about."),
            "specversion": {"description": "The version of CloudEvents.", "enum": ["1.0", None], "default": "1.0"},
            "datacontenttype": {"description": "The form of `data`.", "enum": ["application/json", None]},
            "dataschema": _text_or_null("Where the schema of `data` is."),
            "dataref": _text_or_null("Where more of `data` is."),
            "partitionkey": _text_or_null("A key for the log."),
            "sequence": _text_or_null("Its number among the events of its source."),
            "traceparent": _text_or_null("The trace that it is part of, in the form of W3C Trace Context."),
            "tracestate": _text_or_null("More of the trace, in the form of W3C Trace Context."),
            "recordedtime": _time("When it was recorded."),
        },
        ("type",),
    )


def _statement() -> Schema:
    name = text("A mutation that runs, as `rule/mutation`.", **_MUTATION)
    form = table(
        "A mutation that runs, or one that is skipped.",
        {
            "mutation": name,
            "params": {**_PLAIN, "description": "Values of its parameters; others may have any value."},
            "skipped": {**name, "description": "A mutation that is skipped, as `rule/mutation`."},
            "reason": text("A part of the reason of the skip."),
        },
        more={
            "oneOf": [{"required": ["mutation"]}, {"required": ["skipped"]}],
            "dependencies": {"params": ["mutation"], "reason": ["skipped"]},
        },
    )
    return {"if": {"type": "string"}, "then": name, "else": form}


def _graph() -> Schema:
    return table(
        "A query with its rows, or a number of nodes or relationships.",
        {
            "query": text("A query in Cypher that reads."),
            "params": {**_PLAIN, "description": "The value of each `$name` of the query."},
            "rows": _list(
                "All rows, each a list of values, or a map from column to value. Their order counts if the query "
                "has an `ORDER BY`.",
                {"type": ["array", "object"]},
            ),
            "nodes": _count("nodes", "label"),
            "relationships": _count("relationships", "type"),
        },
        more={
            "oneOf": [{"required": [kind]} for kind in ("query", "nodes", "relationships")],
            "dependencies": {"query": ["rows"], "rows": ["query"], "params": ["query"]},
        },
    )


def _context() -> Schema:
    checks = ("contains", "excludes", "equals", "empty", "missing")
    keys: dict[str, Schema] = {
        "agent": _limited(text("The agent whose turn comes.")),
        "chat": _limited(text("The chat. Default: that of the last event.")),
        "user": _name("The user."),
        "workflow": _limited(text("The workflow whose rules apply. Default: that of the case.")),
        "context": {**_PLAIN, "description": "The context variables, `$context.*` in rules."},
        "budget_ms": whole(
            "The time limit in milliseconds.", minimum=1, maximum=MOST_BUDGET_MS, default=DEFAULT_BUDGET_MS
        ),
        "max_tokens": whole("The limit of tokens.", minimum=1),
        "time": {
            **_time("The time of clock functions in queries. Default: one second after the last event."),
            "type": ["string", "number"],
        },
        "contains": _parts("Parts that the text has."),
        "excludes": _parts("Parts that the text does not have."),
        "equals": text("The whole text."),
        "empty": {"description": "Whether the text is empty.", "type": "boolean"},
        "missing": _list("Blocks that are missing; no other one may be.", _missing()),
    }
    return table(
        "What an agent gets for one turn: at least one of " + ", ".join(f"`{check}`" for check in checks) + ".",
        keys,
        ("agent",),
        {"anyOf": [{"required": [check]} for check in checks]},
    )


def _missing() -> Schema:
    name = text("The name of the block.")
    form = table(
        "A block that is missing.",
        {"name": name, "reason": choice("Why it is missing.", get_args(ReasonCode))},
        ("name",),
    )
    return {"if": {"type": "string"}, "then": name, "else": form}


def _letter() -> Schema:
    return table(
        "Dead letters: those with all of these properties.",
        {
            "reason": choice("Why it has no effect.", get_args(DeadLetterReason)),
            "rule": text("The name of the rule."),
            "mutation": text("The id of the mutation."),
            "type": text("The type of the event."),
            "message": text("A part of the message."),
            "events": whole("How many events they stand for, together.", minimum=1),
        },
        ("reason",),
    )


def _list(description: str, item: Schema) -> Schema:
    return {"description": description, "type": "array", "items": item}


def _count(what: str, by: str) -> Schema:
    return {
        "description": f"How many {what} there are: of all, or by {by}.",
        "type": ["integer", "object"],
        "minimum": 0,
        "additionalProperties": {"type": "integer", "minimum": 0},
    }


def _parts(description: str) -> Schema:
    return {
        "description": f"{description} A text, or a list of texts.",
        "type": ["string", "array"],
        **NOT_BLANK,
        "minItems": 1,
        "items": {"type": "string", **NOT_BLANK},
    }


def _time(description: str) -> Schema:
    return {"description": description, "type": ["string", "number", "null"], "examples": ["2026-01-31T10:00:00Z"]}


def _limited(schema: Schema) -> Schema:
    return {**schema, "maxLength": 256}


def _name(description: str) -> Schema:
    return _text_or_null(description, minLength=1, maxLength=256)


def _text_or_null(description: str, **more: Any) -> Schema:
    return {"description": description, "type": ["string", "null"], **more}
