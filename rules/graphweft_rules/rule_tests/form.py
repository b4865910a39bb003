"""The format of files of rule tests, ``*_test.yaml``."""

from __future__ import annotations

from typing import Any, Final, get_args

from graphweft_contracts import DeadLetterReason, ReasonCode
from graphweft_contracts.events import APP_ID_PATTERN, LIFECYCLE
from graphweft_rules.files.forms import NOT_BLANK, FlagKey, Form, Key, ListKey, NumberKey, Pattern, TextKey

DEFAULT_BUDGET_MS: Final = 10_000
"""Generous: a test must not depend on how fast its machine is."""
MOST_BUDGET_MS: Final = 3_600_000
EXPECTATIONS: Final = ("contains", "excludes", "equals", "empty", "missing")
"""What a context may be expected to have."""
COUNTED: Final = ("nodes", "relationships")

_EVENT_TYPE: Final = Pattern(
    r"^[a-z0-9_]+(\.[a-z0-9_]+)+$", "Not an event type: write a lower-case name with dots, such as order.paid."
)
_MUTATION: Final = Pattern(r"[^ \t\r\n]*/", "Write both names, rule/mutation.")
_RULE_MUTATION: Final = "rule/mutation, a string"
_EVENTS: Final = "a list of events, or a path to a file with JSON lines"
_MAP: Final = {"type": "object"}
_LIMITED: Final = {
    "type": "string",
    "pattern": NOT_BLANK.regex,
    "patternErrorMessage": NOT_BLANK.fault,
    "maxLength": 256,
}
"""What the model of requests accepts."""


def _attribute(meaning: str, **more: Any) -> Key:
    """Return a key whose value the model of events or requests checks: a text, or null, as if it were not there."""
    return Key(meaning, editor={"type": ["string", "null"], **more})


def _name(meaning: str) -> Key:
    return _attribute(meaning, minLength=1, maxLength=256)


def _time(meaning: str, *types: str) -> Key:
    return Key(meaning, editor={"type": ["string", "number", *types], "examples": ["2026-01-31T10:00:00Z"]})


def _parts(meaning: str) -> Key:
    text = TextKey("A part of the text.", wanted="a list of strings")
    return ListKey(f"{meaning} A text, or a list of texts.", text=text, wanted='a list, ["a text"]', alone=True)


def _count(what: str, by: str) -> Key:
    number = {"type": "integer", "minimum": 0}
    return Key(
        f"How many {what} there are: of all, or by {by}.",
        editor={"type": ["integer", "object"], "minimum": 0, "additionalProperties": number},
    )


EVENT: Final = Form(
    name="an event",
    meaning="An event. Only its type is required.",
    keys={
        "type": Key(
            "What has happened, such as `order.paid`.",
            required=True,
            editor={
                "type": "string",
                "pattern": _EVENT_TYPE.regex,
                "patternErrorMessage": _EVENT_TYPE.fault,
                "examples": list(LIFECYCLE),
            },
        ),
        "chat": _name("The chat. Default: `test`."),
        "user": _name("The user."),
        "agent": Key("The agent: `agent_name` in `data`."),
        "context": Key("The context variables, `$context.*` in rules: `context` in `data`.", editor=_MAP),
        "data": Key("What is known of it: `$event.*` in rules.", editor=_MAP),
        "time": _time("When it happened. Default: one second after the event before.", "null"),
        "workflow": _name("The workflow whose rules apply. Default: that of the case."),
        "id": _name("With `source`, what names it for ever. Default: `event-1`, `event-2`, …"),
        "source": _name("Who says that it happened. Default: `/test`."),
        "appid": _attribute("Has no effect here; the events of a case may not name two.", pattern=APP_ID_PATTERN),
        "chatid": _name("The same as `chat`."),
        "userid": _name("The same as `user`."),
        "subject": _name("What it is about."),
        "specversion": Key("The version of CloudEvents.", default="1.0", editor={"enum": ["1.0", None]}),
        "datacontenttype": Key("The form of `data`.", editor={"enum": ["application/json", None]}),
        "dataschema": _attribute("Where the schema of `data` is."),
        "dataref": _attribute("Where more of `data` is."),
        "partitionkey": _attribute("A key for the log."),
        "sequence": _attribute("Its number among the events of its source."),
        "traceparent": _attribute("The trace that it is part of, in the form of W3C Trace Context."),
        "tracestate": _attribute("More of the trace, in the form of W3C Trace Context."),
        "recordedtime": _time("When it was recorded.", "null"),
    },
)
STATEMENT: Final = Form(
    name="a statement",
    meaning="A mutation that runs, or one that is skipped.",
    keys={
        "mutation": TextKey("A mutation that runs, as `rule/mutation`.", pattern=_MUTATION, wanted=_RULE_MUTATION),
        "params": Key("Values of its parameters; others may have any value.", editor=_MAP),
        "skipped": TextKey("A mutation that is skipped, as `rule/mutation`.", pattern=_MUTATION, wanted=_RULE_MUTATION),
        "reason": TextKey("A part of the reason of the skip."),
    },
    one_of=("mutation", "skipped"),
    needs={"params": "mutation", "reason": "skipped"},
)
GRAPH: Final = Form(
    name="a check of the graph",
    meaning="A query with its rows, or a number of nodes or relationships.",
    keys={
        "query": TextKey("A query in Cypher that reads."),
        "params": Key("The value of each `$name` of the query.", editor=_MAP),
        "rows": ListKey(
            "All rows, each a list of values, or a map from column to value. Their order counts if the query has an "
            "`ORDER BY`.",
            may_be_empty=True,
            wanted="a list of rows",
            editor={"items": {"type": ["array", "object"]}},
        ),
        "nodes": _count("nodes", "label"),
        "relationships": _count("relationships", "type"),
    },
    one_of=("query", *COUNTED),
    needs={"rows": "query", "params": "query"},
    editor={"dependencies": {"query": ["rows"]}},
)
MISSING: Final = Form(
    name="a missing block",
    meaning="A block that is missing.",
    keys={
        "name": TextKey("The name of the block.", required=True),
        "reason": TextKey("Why it is missing.", names=get_args(ReasonCode)),
    },
)
CONTEXT: Final = Form(
    name="a check of context",
    meaning="What an agent gets for one turn: at least one of " + ", ".join(f"`{each}`" for each in EXPECTATIONS) + ".",
    keys={
        "agent": Key("The agent whose turn comes.", required=True, editor=_LIMITED),
        "chat": Key("The chat. Default: that of the last event.", editor=_LIMITED),
        "user": _name("The user."),
        "workflow": Key("The workflow whose rules apply. Default: that of the case.", editor=_LIMITED),
        "context": Key("The context variables, `$context.*` in rules.", editor=_MAP),
        "budget_ms": NumberKey(
            "The time limit in milliseconds.", least=1, most=MOST_BUDGET_MS, default=DEFAULT_BUDGET_MS
        ),
        "max_tokens": NumberKey("The limit of tokens.", least=1),
        "time": _time("The time of clock functions in queries. Default: one second after the last event."),
        "contains": _parts("Parts that the text has."),
        "excludes": _parts("Parts that the text does not have."),
        "equals": TextKey("The whole text."),
        "empty": FlagKey("Whether the text is empty."),
        "missing": ListKey(
            "Blocks that are missing; no other one may be.",
            text=TextKey("The name of the block.", wanted="the name of a block"),
            form=MISSING,
            may_be_empty=True,
        ),
    },
    any_of=EXPECTATIONS,
)
LETTER: Final = Form(
    name="a dead letter",
    meaning="Dead letters: those with all of these properties.",
    keys={
        "reason": TextKey("Why it has no effect.", names=get_args(DeadLetterReason), required=True),
        "rule": TextKey("The name of the rule."),
        "mutation": TextKey("The id of the mutation."),
        "type": TextKey("The type of the event."),
        "message": TextKey("A part of the message."),
        "events": NumberKey("How many events they stand for, together.", least=1),
    },
)
CASE: Final = Form(
    name="a case",
    meaning="Events, and what they must lead to. Without an expectation, each event must take effect.",
    keys={
        "name": TextKey("The name of the case, unique in the file.", required=True),
        "workflow": TextKey(
            "The workflow of events and requests that name none. Without this key: the folder of the file."
        ),
        "events": ListKey(
            "What happens, in this order: a list of events and of paths, or one path. A path leads to a file with a "
            "JSON event on each line; it is relative to this file.",
            text=TextKey("The path of a file of events.", wanted=_EVENTS),
            form=EVENT,
            alone=True,
            may_be_empty=True,
            wanted=_EVENTS,
        ),
        "statements": ListKey(
            "All mutations that run, in this order, and mutations that are skipped. Needs no server.",
            text=TextKey("A mutation that runs, as `rule/mutation`.", pattern=_MUTATION, wanted=_RULE_MUTATION),
            form=STATEMENT,
            may_be_empty=True,
        ),
        "graph": ListKey("What the graph contains after all events.", form=GRAPH, may_be_empty=True),
        "context": ListKey("What agents get after all events.", form=CONTEXT, may_be_empty=True),
        "dead_letters": ListKey("What has no effect, and why.", form=LETTER, may_be_empty=True),
        "unmatched": ListKey(
            "Types of events that no rule needs to be for; `prefix.*` for a family of types, `*` for all.",
            text=TextKey("An event type.", editor={"examples": ["agent.turn_start", "tool.*"]}),
            wanted='a list, ["agent.turn_start", "tool.*"]',
        ),
    },
)
TEST_FILE: Final = Form(
    name="a test file",
    meaning="Tests of the rules in this folder: events, and what they must lead to. `graphweft test` runs them.",
    keys={
        "tests": ListKey(
            "The cases. Each has an app of its own, so they do not see one another.", form=CASE, required=True
        )
    },
)
