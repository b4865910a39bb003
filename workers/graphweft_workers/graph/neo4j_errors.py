"""Whose fault a Neo4j error is: the query's, or the server's for now."""

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
"""What a server says about an index or constraint that somebody made just before."""
TIMED_OUT: Final = frozenset(
    {
        "Neo.ClientError.Transaction.TransactionTimedOut",
        "Neo.ClientError.Transaction.TransactionTimedOutClientConfiguration",
        # What a transaction that is over its time says when it asks for a lock next.
        "Neo.ClientError.Transaction.LockClientStopped",
        "Neo.TransientError.Transaction.LockClientStopped",
    }
)
FORBIDDEN: Final = "Neo.ClientError.Security.Forbidden"
_WRONG: Final = frozenset({"Neo.ClientError.Statement.SemanticError", "Neo.ClientError.Statement.SyntaxError"})
"""What a server says of a query that fails each time, whatever its parameters are."""
_PLUGIN: Final = re.compile(r"Unknown function '[^']*\.")
"""Functions with a dot are those of plugins, which another server may have."""
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
"""Named when a transaction alone is too large, and not when all of them together are."""
_POSITION: Final = re.compile(r" \(line (\d+), column (\d+) \(offset: \d+\)\)")
_VALUES: Final = re.compile(r"(?:\.? Encountered: | = '|,? got:? |,? but (?:it )?was:? ).*")
"""From here on an error quotes what stands in the parameters, and events are private."""
_LOGIN_HELP: Final = "set NEO4J_USERNAME and NEO4J_PASSWORD, or user:password@ in GRAPHWEFT_GRAPH_URL"
_AGAIN_S: Final = 5.0
"""Before asking again where an operator has to do something first."""


def code_of(error: BaseException | None) -> str:
    """Return the server's code of an error; empty when it is none of the server's."""
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
    """Return what an error of the driver means to the engine."""
    if not isinstance(error, Neo4jError):
        return GraphUnavailable(f"the graph server is away: {error}")
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
    # A query can make the server's own code fail, and would do so each time.
    if own_fault or code == "Neo.DatabaseError.Statement.ExecutionFailed" or _OWN_MEMORY in text:
        return QueryFailed(text)
    return GraphUnavailable(f"the graph server refuses for now: {text} ({code})")


def _text(error: Neo4jError) -> str:
    """Return the first line of the server's words: behind it there is a piece of the query, or of a parameter."""
    line = (error.message or str(error)).split("\n", 1)[0]
    place = _POSITION.search(line)
    told = _VALUES.sub("", _POSITION.sub("", line))
    return f"{told} (line {place[1]}, column {place[2]} of the query)" if place else told
