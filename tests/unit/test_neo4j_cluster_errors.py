"""What a Neo4j cluster says while its leader changes is an outage, never a fault of a query."""

from __future__ import annotations

import pytest
from neo4j.exceptions import (
    IncompleteCommit,
    Neo4jError,
    ReadServiceUnavailable,
    ServiceUnavailable,
    SessionExpired,
    WriteServiceUnavailable,
)

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_workers.drivers.neo4j.errors import translate

_CODES = (
    "Neo.ClientError.Cluster.NotALeader",
    "Neo.ClientError.Cluster.ReplicationFailure",
    "Neo.ClientError.Cluster.Routing",
    "Neo.ClientError.Database.DatabaseUnavailable",
    "Neo.ClientError.General.ForbiddenOnReadOnlyDatabase",
    "Neo.ClientError.Transaction.InvalidBookmark",
    "Neo.ClientError.Transaction.TransactionNotFound",
    "Neo.DatabaseError.General.UnknownError",
    "Neo.TransientError.Cluster.ReplicationFailure",
    "Neo.TransientError.Database.DatabaseUnavailable",
    "Neo.TransientError.General.DatabaseUnavailable",
    "Neo.TransientError.Transaction.BookmarkTimeout",
    "Neo.TransientError.Transaction.LeaseExpired",
    "Neo.TransientError.Transaction.Terminated",
)


@pytest.mark.parametrize("code", _CODES)
def test_a_member_that_cannot_write_is_unavailable(code: str) -> None:
    error = Neo4jError._hydrate_neo4j(code=code, message="no leader")  # as the driver makes them of an answer
    assert isinstance(translate(error), GraphUnavailable)


@pytest.mark.parametrize(
    "kind", [IncompleteCommit, ReadServiceUnavailable, ServiceUnavailable, SessionExpired, WriteServiceUnavailable]
)
def test_a_lost_member_is_unavailable(kind: type[Exception]) -> None:
    error: ServiceUnavailable | SessionExpired = kind("gone")  # type: ignore[assignment]
    assert isinstance(translate(error), GraphUnavailable)


def test_a_wrong_query_stays_a_fault_of_the_query() -> None:
    error = Neo4jError._hydrate_neo4j(code="Neo.ClientError.Statement.SyntaxError", message="Invalid input")
    assert isinstance(translate(error), QueryFailed)
