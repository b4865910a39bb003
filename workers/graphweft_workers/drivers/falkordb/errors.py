"""Translates the server's errors: the query is wrong, or the server is unavailable."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from graphweft.transports.redis.connection import is_of_login
from graphweft_contracts import GraphUnavailable, GraphweftError, QueryFailed, channels

POSITION: Final = re.compile(r" line: (\d+), column: (\d+), offset: \d+")
# FalkorDB's errors have no code. These prefixes mark errors of the server, not of the query; redis-py has classes for
# most others.
_NOT_THE_QUERY: Final = (
    "Max pending queries exceeded",
    "unknown command",
    "MISCONF ",
    "NOREPLICAS ",
    "BUSY ",
    "The query TIMEOUT parameter value cannot exceed",  # TIMEOUT_MAX was lowered meanwhile
)
_OUT_OF_MEMORY: Final = (
    "it is out of memory (maxmemory). Raise maxmemory; if it is the bus too, archive and trim the log first: "
    "`graphweft archive now`, then `graphweft trim`"
)
NO_GRAPH_KEY: Final = "WRONGTYPE"
TIMED_OUT: Final = "Query timed out"
NO_GRAPH: Final = "Invalid graph operation on empty key"
FAULT: Final = re.compile(
    r"errMsg: |'[^']*' not defined|Unknown function '[^'.]*'|Received \d+ arguments to function|"
    r"Procedure `[^`]*` (?:requires|does not yield)|A WITH clause is required|Query cannot (?:conclude|begin) with|"
    r"Error: (?:Multiple result columns|query with more than one statement)|All sub queries in a UNION|"
    r"Invalid (?:combination of UNION|use of aggregating|usage of 'NOT')|Can't use aggregat|"
    r"WITH (?:clause projections|imports in CALL)|Expression in CALL must be aliased|"
    r"The (?:alias|bound variable) '|Variable `|Variable length |Maximum number of hops|"
    r"Exactly one relationship type|Only directed relationships|Cannot use the same relationship|"
    r"FalkorDB (?:does not currently support|currently only supports|support )|'\w+' function requires a WHERE|"
    r"DELETE can only be called|RETURN \* is not allowed|Cannot specify both DISTINCT|Unexpected clause following|"
    r"ORDER BY cannot reference|(?:A |all)?shortestPath|Encountered unhandled type in inlined properties"
)
"""Messages for a query that fails with any parameters (4.22)."""
OF_VALUES: Final = re.compile(r"(?:Limit|Skip) operates only on|Missing parameters")
"""Messages for missing parameters, which a check does not send."""
_OF_WRONG_VALUES: Final = re.compile(
    r"Property values can only be|Type mismatch: |Cannot merge (?:node|relationship) using null|Failed to parse |"
    r"\w+ must be (?:an integer value|a numerical value|a non-negative integer|specified)$|Invalid value for \w+ \(|"
    r"Did not find '\w+' value in point map|.*values in point map|\w+ should be within the |Invalid input - |"
    r"datetime components map |vectorf32 expects |Vector dimension mismatch|unique constraint violation|"
    r"RediSearch: Syntax error "
)
"""Messages for values that the query cannot take. A division by zero is the query's: its author can guard it."""
_QUOTING: Final = re.compile(
    r"(Invalid input -) '.*'(?= is not )|(RediSearch: Syntax error at offset \d+).*", re.DOTALL
)
"""Messages that quote values, which may be private, with what may be shown; others quote none (4.22)."""
NAMED: Final = re.compile(r"['`]([^'`]+)['`]")


def reason(said: str) -> str:
    """Return the server's message on one line, without the place."""
    return " ".join(POSITION.sub("", said.partition(" errCtx:")[0]).removeprefix("errMsg: ").split())


def unchecked(error: RedisError | OSError) -> QueryFailed:
    """Return the failure for a server that does not allow queries to be checked."""
    commands, key = "GRAPH.QUERY and GRAPH.EXPLAIN", channels.GRAPH_CHECK
    return QueryFailed(
        f"the server does not allow queries to be checked, which needs {commands} on the key {key!r}: {error}"
    )


def of_graph(error: BaseException) -> GraphweftError:
    """Translate the error of one of graphweft's own queries: the server is at fault, or the graph's key."""
    reason = translate(error)
    if isinstance(reason, QueryFailed) and not str(error).startswith(NO_GRAPH_KEY):
        return GraphUnavailable(f"the graph server refuses: {reason}")
    return reason


def translate(error: BaseException) -> GraphweftError:
    """Translate an error of the server or of the connection."""
    # ResponseError itself is a query's fault; its subclasses (LOADING, OOM, READONLY, NOPERM …) are the server's.
    if type(error) is ResponseError:
        text = str(error).partition(" errCtx:")[0]
        if text.startswith(TIMED_OUT):
            return QueryFailed("the query was aborted at its time limit", code="timeout")
        if not text.startswith(_NOT_THE_QUERY):
            text = _QUOTING.sub(lambda found: found[1] or found[2], text.removeprefix("errMsg: "))
            return QueryFailed(text, of_value=bool(_OF_WRONG_VALUES.match(text)))
    if isinstance(error, OutOfMemoryError):
        return GraphUnavailable(f"the graph server refuses writes: {_OUT_OF_MEMORY}")
    if is_of_login(error):
        login = "check GRAPHWEFT_GRAPH_USER and GRAPHWEFT_GRAPH_PASSWORD"
        return GraphUnavailable(f"the graph server refuses the login: {error}; {login}", retry_after_s=5.0)
    return GraphUnavailable(f"the graph server is unavailable: {error}")
