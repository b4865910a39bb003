"""``graphweft events tail``."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from graphweft_contracts import BusUnavailable
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import MOST_SCANNED, Data, Json, Scan, Since, check_app, command, since_time
from graphweft_workers.cli.output import show, tell_progress, warn
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.scan import Decoder, LogFollower, ScanLimits, ends, newest_first, partitions_of
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus

_HIDDEN: Final = (
    "entry that cannot be decoded is not shown: run without filters to see it",
    "entries that cannot be decoded are not shown: run without filters to see them",
)
_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Options that choose events."""

    app: Annotated[str | None, typer.Option("--app", help="Only events of this app.")] = None
    type: Annotated[str | None, typer.Option("--type", help="Only this type; order.* for a family.")] = None
    chat: Annotated[str | None, typer.Option("--chat", help="Only events of this chat.")] = None
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only events of this workflow.")] = None

    def wants(self, seen: DecodedEntry) -> bool:
        """Tell whether an entry is wanted."""
        event = seen.event
        if seen.activation is not None:
            return not (self.type or self.chat or self.workflow) and self.app in (
                None, seen.activation.scope, self.app if seen.activation.scope == ALL_APPS else None
            )  # fmt: skip
        if event is None:
            return not (self.app or self.type or self.chat or self.workflow)
        return (
            self.app in (None, event.appid)
            and self.chat in (None, event.chatid)
            and self.workflow in (None, event.workflow)
            and (self.type is None or _is_of(self.type, event.type))
        )


@command
async def events_tail(
    chosen: EventFilter,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of events to begin with.")] = 20,
    since: Since = None,
    scan: Scan = MOST_SCANNED,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show the newest events of the bus, the newest last. Workers are not disturbed.

    Each line has the time of receipt, app, chat, type, id, position and the beginning of the data.
    """
    limits = ScanLimits(entries=scan, since=since_time(since), on_progress=tell_progress)
    async with running_bus(Settings.load(data=data)) as bus:
        if chosen.app is not None:
            check_app(chosen.app)
        partitions = await partitions_of(bus, chosen.app)
        decoder = await Decoder.of(bus)
        reached = await ends(bus, partitions)
        shown: deque[DecodedEntry] = deque()
        hidden = 0
        if lines:
            async for partition, entry in limits.within(newest_first(bus.log, reached)):
                seen = await decoder.see(partition, entry)
                hidden += seen.kind == "invalid"
                if chosen.wants(seen):
                    shown.appendleft(seen)
                    if len(shown) == lines:
                        break
        for seen in shown:
            show(seen, json=json)
        hidden -= sum(seen.kind == "invalid" for seen in shown)
        _warn_hidden(hidden)
        if limits.cut and len(shown) < lines:
            warn(f"only the newest {counted(scan, 'entry was', 'entries were')} searched: see --scan")
        if follow:
            await _follow(LogFollower(bus, partitions, reached), decoder, chosen, json=json)
        elif not shown and lines:
            read = counted(limits.scanned, "entry was read", "entries were read")
            warn(
                f"no such events; {read}: check the filters, or leave them out"
                if reached
                else "the bus holds no events"
            )


async def _follow(follower: LogFollower, decoder: Decoder, chosen: EventFilter, *, json: bool) -> None:
    fresh: deque[tuple[int, Entry]] = deque()
    waiting = False
    while True:
        hidden = 0
        try:
            if not fresh:
                fresh.extend(await follower.fresh(lambda number, what: warn(f"partition {number} {what}")))
            while fresh:
                seen = await decoder.see(*fresh[0])
                fresh.popleft()
                if chosen.wants(seen):
                    show(seen, json=json)
                else:
                    hidden += seen.kind == "invalid"
            waiting = False
        except BusUnavailable as error:
            if not waiting:
                warn(f"waiting for the bus: {error}")
            waiting = True
        sys.stdout.flush()
        _warn_hidden(hidden)
        await asyncio.sleep(_POLL_S)


def _warn_hidden(entries: int) -> None:
    if entries:
        warn(counted(entries, *_HIDDEN))


def _is_of(pattern: str, event_type: str) -> bool:
    return pattern in ("*", event_type) or (pattern.endswith(".*") and event_type.startswith(pattern[:-1]))
