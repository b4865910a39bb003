"""Replies over HTTP do not say what the graph server said; the log does, under the id of the request."""

from __future__ import annotations

from structlog.testing import capture_logs

from graphweft_contracts import ContextReply
from graphweft_contracts.context import Missing
from graphweft_workers.gateway.redaction import public, without_addresses

SAID = "graph_injection.yaml:14:9: Type mismatch: expected a map (Neo.ClientError.Statement.TypeError)"


def test_a_failed_query_has_a_public_text_and_a_line_in_the_log() -> None:
    missing = Missing(name="tags", rule="orders", query="first", reason="query_error", detail=SAID)
    reply = ContextReply(id="request-1", reason="query_error", detail=SAID, missing=(missing,))
    with capture_logs() as logs:
        shown = public(reply)
    assert "Type mismatch" not in shown.model_dump_json()
    assert shown.missing[0].detail == shown.detail
    assert "the id of this request" in shown.detail
    assert without_addresses(reply) == reply
    assert [(log["event"], log["request_id"], log["detail"]) for log in logs] == [
        ("reply_incomplete", "request-1", SAID)
    ]
