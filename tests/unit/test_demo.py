"""The last lines of ``graphweft demo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphweft_workers.cli.demo import next_steps

LINK = "console: http://127.0.0.1:45321/#token=gw_secret"
NONE = "no console: install graphweft[console] for it"
UP = "graphweft up --data .graphweft/demo --rules .graphweft/demo/changed-rules"


QUERY = "  graphweft query --data .graphweft/demo --app airline 'MATCH (t:Tool) RETURN t.name, t.calls'"


def steps(console: str, *, keep: bool) -> list[str]:
    """Return the lines below the sentence that says what to do."""
    data = Path(".graphweft/demo")
    return next_steps("graphweft", data, data / "changed-rules", console=console, port=8766, keep=keep)[2:]


@pytest.mark.parametrize(
    ("console", "keep", "lines"),
    [
        (LINK, True, [QUERY, LINK]),
        (LINK, False, [f"  {UP}    # the console is then on http://127.0.0.1:8766", QUERY]),
        (NONE, True, [QUERY, NONE]),
        (NONE, False, [f"  {UP}    # {NONE}", QUERY]),
        ("", True, [QUERY, UP]),
        ("", False, [f"  {UP}", QUERY]),
    ],
)
def test_the_steps_come_in_their_order_and_lead_to_the_console(console: str, keep: bool, lines: list[str]) -> None:
    """What does not run is started before it is asked."""
    assert steps(console, keep=keep) == lines
