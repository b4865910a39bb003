"""Layouts of buses in tests."""

from __future__ import annotations

from graphweft_contracts import Layout


def spread(partitions: int) -> Layout:
    """Return the layout that spreads the chats of each app, so that several partitions write one graph."""
    return Layout(partitions=partitions, order="chat")
