"""Headers of CloudEvents in binary mode: quotes are removed before percents are decoded."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from graphweft_workers.gateway.cloud_events import _binary

PLAIN = {"ce-specversion": "1.0", "ce-id": "b", "ce-source": "/t", "ce-type": "note.made"}


@pytest.mark.parametrize(
    ("header", "meant"),
    [
        ('"c 7"', "c 7"), ("c%207", "c 7"), ('"c%207"', "c 7"), (r'"say \"hi\" \\ c"', r'say "hi" \ c'), ('c"7', 'c"7'),
        ("%22c%22", '"c"'), ('"c', '"c'),
    ],
)  # fmt: skip
def test_a_header_in_quotes_means_its_content(header: str, meant: str) -> None:
    headers = Headers({**PLAIN, "ce-chatid": header})
    event = _binary("application/json", headers, b"{}", "acme", "2026-02-01T10:00:00Z")
    assert event.chatid == meant
