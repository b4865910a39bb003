"""The last lines of ``graphweft demo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphweft_workers.cli.demo import next_steps

LINK = "console: http://127.0.0.1:45321/#token=gw_secret"
NONE = "no console: install graphweft[console] for it"
UP = "graphweft up --data .graphweft/demo --rules .graphweft/demo/changed-rules"


def last_line(console: str, *, keep: bool) -> str:
    data = Path(".graphweft/demo")
    return next_steps("graphweft", data, data / "changed-rules", console=console, port=8766, keep=keep)[-1]


@pytest.mark.parametrize(
    ("console", "keep", "last"),
    [
        (LINK, True, LINK),
        (LINK, False, f"{UP}    # the console is then on http://127.0.0.1:8766"),
        ("no console: install graphweft[console] for it", True, "no console: install graphweft[console] for it"),
        (
            "no console: install graphweft[console] for it",
            False,
            f"{UP}    # no console: install graphweft[console] for it",
        ),
        ("", True, UP),
        ("", False, UP),
    ],
)
def test_the_last_line_leads_to_the_console(console: str, keep: bool, last: str) -> None:
    assert last_line(console, keep=keep) == last
