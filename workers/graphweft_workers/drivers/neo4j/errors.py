"""Translates Neo4j's errors: the query is wrong, or the server is unavailable."""

from __future__ import annotations

import re
from typing import Final

from neo4j.exceptions import AuthError, DriverError, Neo4jError

from graphweft_contracts import GraphUnavailable, GraphweftError, QueryFailed

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
_WRONG: Final = frozenset({"Neo.ClientError.Statement.SemanticError", "Neo.ClientError.Statement.SyntaxError"})
"""Codes of a query that fails with any parameters."""
_OF_WRONG_VALUES: Final = frozenset({"Neo.ClientError.Statement.ArgumentError", "Neo.ClientError.Statement.TypeError"})
"""Codes of a query that cannot take the type of a value."""
_OF_VALUE: Final = re.compile(
    r"Cannot merge the following (?:node|relationship) because of null|Text cannot be parsed to "
)
"""Messages for the same, whose codes are those of wrong queries too."""
_PLUGIN: Final = re.compile(r"Unknown function '[^']*\.")
"""Functions with a dot belong to plugins, which another server may have."""
_NOT_THE_QUERY: Final = (
    "Neo.ClientError.Cluster.",
    "Neo.ClientError.Database.",
    "Neo.ClientError.General.",
    "Neo.ClientError.Transaction.",
)
_LOGIN: Final = frozenset(
    {
        "Neo.ClientError.Security.AuthenticationRateLimit",
        "Neo.ClientError.Security.AuthorizationExpired",
        "Neo.ClientError.Security.CredentialsExpired",
        "Neo.ClientError.Security.TokenExpired",
        "Neo.ClientError.Security.Unauthorized",
    }
)
_OWN_MEMORY: Final = "db.memory.transaction.max"
"""The setting that is named if one transaction is too large, not all together."""
_POSITION: Final = re.compile(r" \(line (\d+), column (\d+) \(offset: \d+\)\)")
_VALUES: Final = re.compile(r"(?:\.? Encountered: | = '|,? got:? |,? but (?:it )?was:? ).*")
"""The rest of an error quotes parameters, which may be private."""
_LOGIN_HELP: Final = "set NEO4J_USERNAME and NEO4J_PASSWORD, or user:password@ in GRAPHWEFT_GRAPH_URL"
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
    places = _POSITION.findall(text)
    line = _POSITION.sub("", text.split("\n", 1)[0])
    fails = code_of(error) in _WRONG and not _PLUGIN.match(line)
    return line, (int(places[-1][0]), int(places[-1][1])) if places else None, fails


def translate(error: Neo4jError | DriverError | OSError) -> GraphweftError:
    """Translate an error of the driver."""
    if not isinstance(error, Neo4jError):
        return GraphUnavailable(f"the graph server is unavailable: {error}")
    code, text = code_of(error), _text(error)
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
    if own_fault or code == "Neo.DatabaseError.Statement.ExecutionFailed" or _OWN_MEMORY in text:
        return QueryFailed(text, of_value=code in _OF_WRONG_VALUES or bool(_OF_VALUE.match(text)))
    return GraphUnavailable(f"the graph server refuses for now: {text} ({code})")


def _text(error: Neo4jError) -> str:
    """Return the first line of the message; the rest quotes the query or a parameter."""
    line = (error.message or str(error)).split("\n", 1)[0]
    place = _POSITION.search(line)
    told = _VALUES.sub("", _POSITION.sub("", line))
    return f"{told} (line {place[1]}, column {place[2]} of the query)" if place else told
