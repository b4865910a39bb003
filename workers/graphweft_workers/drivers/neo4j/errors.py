"""Translates Neo4j's errors: the query is wrong, or the server is unavailable."""

from __future__ import annotations

import re
from typing import Final

from neo4j.exceptions import AuthError, BrokenRecordError, DriverError, Neo4jError

from graphweft_contracts import GraphUnavailable, GraphweftError, QueryFailed
from graphweft_workers.drivers.neo4j.messages import OF_COMPILER, POSITION, cut, shown
from graphweft_workers.drivers.neo4j.values import UNREADABLE

DEADLOCK: Final = "Neo.TransientError.Transaction.DeadlockDetected"
NO_DATABASE: Final = "Neo.ClientError.Database.DatabaseNotFound"
THERE: Final = frozenset(
    {
        "Neo.ClientError.Schema.ConstraintAlreadyExists",
        "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists",
        "Neo.ClientError.Schema.IndexAlreadyExists",
    }
)
"""Codes for an index or constraint that was created concurrently."""
TIMED_OUT: Final = frozenset(
    {
        "Neo.ClientError.Transaction.TransactionTimedOut",
        "Neo.ClientError.Transaction.TransactionTimedOutClientConfiguration",
        # A transaction that exceeds its time gets this at its next lock.
        "Neo.ClientError.Transaction.LockClientStopped",
        "Neo.TransientError.Transaction.LockClientStopped",
    }
)
FORBIDDEN: Final = "Neo.ClientError.Security.Forbidden"
_OF_WRONG_VALUES: Final = frozenset({"Neo.ClientError.Statement.ArgumentError", "Neo.ClientError.Statement.TypeError"})
"""Codes of a query that cannot take the type of a value."""
_OF_VALUE: Final = re.compile(
    r"Cannot merge the following (?:node|relationship) because of null|Text cannot be parsed to |Invalid value for |"
    r"(?:long|integer) overflow$|numeric value out of range$|Property value is too large to index|"
    r"Invalid call signature for |Cannot convert to ZoneId|Unknown field: |Unsupported unit: |"
    r"\w+ must be an? \w+ value|Expected an integer between |Invalid input for [\w ]*value in function |"
    r"(?:Node|Relationship)\(\d+\) (?:already exists )?with (?:label|type) "
)
"""Messages for the same, whose codes are those of wrong queries, or of defects of the server, too. A division by zero
is a fault of the query, as on other servers: its author can guard it."""
_PLUGIN: Final = re.compile(r"Unknown function '[^']*\.")
"""Functions with a dot belong to plugins, which another server may have."""
_NOT_THE_QUERY: Final = (
    "Neo.ClientError.Cluster.",
    "Neo.ClientError.Database.",
    "Neo.ClientError.General.",
    "Neo.ClientError.Transaction.",
)
USER_LOCKED: Final = "Neo.ClientError.Security.AuthenticationRateLimit"
"""The code for a user that had too many wrong passwords just now; this one was not looked at."""
WRONG_LOGIN: Final = frozenset({USER_LOCKED, "Neo.ClientError.Security.Unauthorized"})
"""Codes after which each further login may lock the user."""
_LOGIN: Final = WRONG_LOGIN | {
    "Neo.ClientError.Security.AuthorizationExpired",
    "Neo.ClientError.Security.CredentialsExpired",
    "Neo.ClientError.Security.TokenExpired",
}
_OWN_MEMORY: Final = "db.memory.transaction.max"
"""The setting that is named if one transaction is too large, not all together."""
_LOGIN_HELP: Final = (
    "set GRAPHWEFT_GRAPH_USER and GRAPHWEFT_GRAPH_PASSWORD, or NEO4J_USERNAME and NEO4J_PASSWORD, or user:password@ in "
    "GRAPHWEFT_GRAPH_URL"
)
_AGAIN_S: Final = 5.0
"""The wait before a retry that needs an operator."""


def code_of(error: BaseException | None) -> str:
    """Return the server's code of an error; empty for other errors."""
    return (error.code or "") if isinstance(error, Neo4jError) else ""


def refusal_of(error: Neo4jError) -> tuple[str, tuple[int, int] | None, bool]:
    """Return why a query does not compile, on one line, where, and whether it fails each time.

    Values of parameters, which are private, must not have been given.
    """
    text = error.message or str(error)
    places = POSITION.findall(text)
    line = POSITION.sub("", text.split("\n", 1)[0])
    fails = code_of(error) in OF_COMPILER and not _PLUGIN.match(line)
    return line, (int(places[-1][0]), int(places[-1][1])) if places else None, fails


def translate(error: Neo4jError | DriverError | OSError) -> GraphweftError:
    """Translate an error of the driver."""
    if isinstance(error, BrokenRecordError):  # the driver names the column
        return QueryFailed(f"{UNREADABLE} ({cut(str(error))})", of_value=True)
    if not isinstance(error, Neo4jError):
        return GraphUnavailable(f"the graph server is unavailable: {error}")
    code, message = code_of(error), error.message or str(error)
    # Messages about servers, databases, users and rights name no values.
    is_of_server = not code or code.startswith((*_NOT_THE_QUERY, "Neo.ClientError.Security.", "Neo.TransientError."))
    text = cut(message) if is_of_server else shown(code, message)
    if code in TIMED_OUT:
        return QueryFailed("the query was aborted at its time limit", code="timeout")
    if code in _LOGIN or isinstance(error, AuthError):
        return GraphUnavailable(f"the graph server refuses the login ({text}): {_LOGIN_HELP}", retry_after_s=_AGAIN_S)
    if code == NO_DATABASE:
        return GraphUnavailable(
            f"the graph server has no such database ({text}): create it, or name another one with NEO4J_DATABASE or "
            "behind the host in GRAPHWEFT_GRAPH_URL",
            retry_after_s=_AGAIN_S,
        )
    own_fault = code.startswith("Neo.ClientError.") and not code.startswith(_NOT_THE_QUERY)
    # A query can crash the server's code, and would do so each time.
    if own_fault or code == "Neo.DatabaseError.Statement.ExecutionFailed" or _OWN_MEMORY in message:
        return QueryFailed(text, of_value=code in _OF_WRONG_VALUES or bool(_OF_VALUE.match(message)))
    return GraphUnavailable(f"the graph server refuses for now: {text} ({code})")
