"""What ``graphweft status`` prints of the use and the quotas of apps."""

from __future__ import annotations

from typing import Final

from graphweft_contracts.plurals import counted
from graphweft_workers.cli.output import print_table, say, warn
from graphweft_workers.engine.app_use import AppUse
from graphweft_workers.wiring.app_uses import AppUses

_KEEPS_NO: Final = "dead letter keeps no event"
_KEEP_NO: Final = "dead letters keep no event"
_MOST: Final = 20
"""Apps of the table, and apps with a line of their own."""


def show_uses(uses: AppUses) -> None:
    """Print a table of the first apps, which apps lose events or queries, and what is over a quota."""
    if uses.apps:
        print_table(
            ("app", "events/s", "stored", "dead letters", "graph", "names", "highest use", "refused"),
            [_row(use) for use in uses.apps[:_MOST]],
            title="Use",
        )
    if len(uses.apps) > _MOST:
        say(f"and {counted(len(uses.apps) - _MOST, 'other app')}; `graphweft status --json` shows all")
    hindered = [use for use in uses.apps if use.without_payload or use.without_turn]
    for use in hindered[:_MOST]:
        if use.without_payload:
            letters = counted(use.without_payload, _KEEPS_NO, _KEEP_NO)
            say(f"{use.app_id}: {letters}: another one of the event does, or the quota is full; a retry reads the log")
        if use.without_turn:
            queries = counted(use.without_turn, "slow query", "slow queries")
            say(f"{use.app_id}: {queries} got no turn in time: make them quicker, or raise the budget")
    if len(hindered) > _MOST:
        more = counted(
            len(hindered) - _MOST, "more app has such letters or queries", "more apps have such letters or queries"
        )
        say(f"{more}; `graphweft status --json` shows all")
    copied = [use for use in uses.apps if use.copies]
    for use in copied[:_MOST]:
        say(f"{use.app_id}: {counted(use.copies, 'copy had', 'copies had')} no effect")
    if len(copied) > _MOST:
        more = counted(len(copied) - _MOST, "more app has copies", "more apps have copies")
        say(f"{more}; `graphweft status --json` shows all")
    for note in uses.notes:
        warn(note)


def _row(use: AppUse) -> tuple[str, ...]:
    shares = use.shares()
    highest = ""
    if shares and use.highest >= 0.0005:
        quota = max(shares, key=lambda name: shares[name])
        highest = f"{shares[quota]:.1%} of {quota}" + (" (over)" if shares[quota] > 1 else "")
    return (
        use.app_id,
        f"{use.events_per_s:.1f}",
        _bytes(use.stored_bytes),
        f"{use.dead_letters:,}",
        "" if use.graph_bytes is None else _bytes(use.graph_bytes),
        "" if use.property_names is None else f"{use.property_names:,}",
        highest,
        ", ".join(f"{number:,} {quota}" for quota, number in sorted(use.refused.items())),
    )


def _bytes(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
