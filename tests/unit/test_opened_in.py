"""A connection that nobody closed is named with the test in which it was opened."""

from __future__ import annotations

import asyncio
import socket
import warnings


async def test_a_connection_that_is_left_open_names_its_test() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        writer.transport.__del__()  # type: ignore[attr-defined] # as when it is found to be open
    writer.close()
    theirs.close()
    assert "test_a_connection_that_is_left_open_names_its_test (call)" in str(said[0].message)
