"""Publishing with a progress bar, as ``emit``, ``import`` and ``memory`` do it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from graphweft_contracts import BusUnavailable, Event, InvalidEvent, InvalidSettings, MissingRight
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import Data, Json, number
from graphweft_workers.cli.output import stderr, warn
from graphweft_workers.engine.log.duplicates import WINDOW
from graphweft_workers.engine.log.series import AppRecord
from graphweft_workers.engine.log.series_store import read_marks
from graphweft_workers.imports.runs import ImportProblem
from graphweft_workers.ports.bus import Bus
from graphweft_workers.reports.delivery import (
    DeliveryOutcome,
    SentEvents,
    how_to_go_on,
    outcome_of,
    send,
    wait_until_applied,
)
from graphweft_workers.reports.without_rule import EventKinds, WithoutRule, without_rule
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_transport
from graphweft_workers.wiring.running import check_bus

_MOST_NUMBERS: Final = 8
_MARKS_S: Final = 2.0
"""For what only saves a look at the numbers of the whole log."""
_NOT_REPEATABLE: Final = (
    f"more than {WINDOW:,} of these events go to one partition. Do not send all of them again: the workers would take "
    "the first ones for new events and apply them twice"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Options of every command that publishes events."""

    data: Data = None
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Return when the workers have processed the events; exit with 1 unless all applied."
        ),
    ] = False
    give_up_after: Annotated[
        float | None,
        typer.Option(
            "--give-up-after",
            parser=number(0),
            metavar="SECONDS",
            help="Stop after an outage of this many seconds.",
            show_default="keep trying",
        ),
    ] = None
    json: Json = False

    def settings(self) -> Settings:
        """Load the settings."""
        return Settings.load(data=self.data)


async def publish(
    settings: Settings,
    groups: AsyncIterable[Iterable[Event]],
    options: PublishOptions,
    *,
    harmless: bool = False,
) -> tuple[SentEvents, DeliveryOutcome | None]:
    """Send groups of events with a progress bar on standard error. With ``--wait``, also return their outcome.

    It is None, and ``sent.without_outcome`` true, if the user may not read it, or the bus is away for too long.
    ``harmless`` says that a second copy of the events changes nothing, so there is no warning of many events.
    """
    sent = SentEvents(
        positions=set() if options.wait else None, kinds=EventKinds() if options.wait else None, harmless=harmless,
        marks=await _marks(settings) if options.wait else None,
    )  # fmt: skip
    try:
        await _send(settings, groups, sent, options)
    except (InvalidEvent, ImportProblem) as error:
        if not (harmless and sent.events):
            raise
        before = counted(sent.events, "event was", "events were")
        raise type(error)(f"{error} ({before} sent before; it is safe to run again)") from error
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):  # while it sends, or while it reads
        if harmless:
            warn(f"interrupted: the bus has taken {counted(sent.events, 'event')}; {how_to_go_on(sent)}")
        raise
    return sent, await _outcome(settings, sent, options) if options.wait else None


async def _send(
    settings: Settings, groups: AsyncIterable[Iterable[Event]], sent: SentEvents, options: PublishOptions
) -> None:
    transport = make_transport(settings)
    repeatable = True

    try:
        with bar("publishing", None) as advance:

            def progress(count: int) -> None:
                nonlocal repeatable
                advance(count)
                if repeatable and not sent.repeatable:
                    repeatable = False
                    warn(_NOT_REPEATABLE)

            async for group in groups:
                await send(
                    transport,
                    group,
                    sent=sent,
                    give_up_s=options.give_up_after,
                    on_progress=progress,
                    on_outage=partial(_tell_outage, settings),
                )
    finally:
        await transport.aclose()


def _tell_outage(settings: Settings, error: BusUnavailable) -> None:
    hint = f"; is `graphweft up --data {settings.data}` running?" if settings.embedded else ""
    warn(f"{str(error).rstrip('.')}; trying again, Ctrl-C stops{hint}")


async def _outcome(settings: Settings, sent: SentEvents, options: PublishOptions) -> DeliveryOutcome | None:
    bus = make_bus(settings)
    worker = f"graphweft up --data {settings.data}" if settings.embedded else "graphweft run mutation"

    def unattended(partitions: Sequence[int]) -> None:
        numbers = ", ".join(map(str, partitions[:_MOST_NUMBERS])) + (", …" if partitions[_MOST_NUMBERS:] else "")
        warn(f"no worker reads partition {numbers}: start `{worker}`; waiting, Ctrl-C stops and the events stay")

    def stuck(app: str, why: str) -> None:
        warn(f"the app {app} waits for {why}: `graphweft status` says more; waiting, Ctrl-C stops and the events stay")

    outage = partial(_tell_outage, settings)
    try:
        with lag_bar(None) as lag:
            await wait_until_applied(
                bus,
                sent.last,
                apps=sent.apps,
                give_up_s=options.give_up_after,
                on_lag=lag,
                on_unattended=unattended,
                on_stuck=stuck,
                on_outage=outage,
            )
        outcome = await outcome_of(bus, sent, give_up_s=options.give_up_after, on_outage=outage)
        return outcome.with_unmatched(await _without_rule(settings, bus, sent))
    except BusUnavailable as error:
        sent.without_outcome = True
        what = "this user may not read how far workers are, so " if isinstance(error, MissingRight) else ""
        warn(f"{what}it is not known whether the events were applied: {error}")
        return None
    finally:
        await bus.aclose()


@contextmanager
def lag_bar(total: int | None) -> Generator[Callable[[int], None]]:
    """Show how many events are applied. Yields a function that gets the number of those that are left."""
    with bar("applying", total) as advance:
        left = total or 0

        def lag(events_left: int) -> None:
            nonlocal left
            advance(max(0, left - events_left))
            left = events_left

        yield lag


async def _marks(settings: Settings) -> Mapping[int, Sequence[AppRecord]] | None:
    """Return what tells later which of the events were copies."""
    bus = make_bus(settings)
    try:
        async with asyncio.timeout(_MARKS_S):
            return await read_marks(bus.series)
    except (BusUnavailable, TimeoutError):  # sending waits for the bus, and reports it
        return None
    finally:
        await bus.aclose()


async def _without_rule(settings: Settings, bus: Bus, sent: SentEvents) -> Sequence[WithoutRule]:
    """Return the kinds of events that no rule is for, and warn if nobody can say so now."""
    assert sent.kinds is not None
    if not sent.kinds.counted():
        return ()
    from graphweft_workers.wiring.rules import rules_maker

    try:
        return await without_rule(bus, sent.kinds, rules_maker(settings))
    except (BusUnavailable, InvalidSettings) as error:
        warn(f"whether rules are for all of these events is not known: {error}")
        return ()


@contextmanager
def bar(title: str, total: int | None, unit: str = "events") -> Generator[Callable[[int], None]]:
    """Show a progress bar on standard error. Yields a function that advances it by a number of units."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr(), disable=not stderr().is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C and SIGTERM end code that does not await: asyncio's own handlers act only at the next await."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, end))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def read_between[Group](groups: Iterator[Group]) -> AsyncGenerator[Group]:
    """Yield groups that are read while nothing is sent, so that a file of any size is read once."""
    task = asyncio.current_task()
    while True:
        await asyncio.sleep(0)  # a signal that came while something was sent acts now, and not after a read without end
        with interruptible():
            if task is not None and task.cancelling():
                raise asyncio.CancelledError
            group = next(groups, None)
        if group is None:
            return
        yield group


async def at_once(events: Sequence[Event]) -> AsyncGenerator[Sequence[Event]]:
    """Yield all events as one group."""
    yield events


async def publish_events(settings: Settings, events: Sequence[Event], options: PublishOptions) -> str | None:
    """Publish events. Return the position of the last one, or None if they are in several partitions."""
    await check_bus(settings)
    if not events:
        return None
    sent, outcome = await publish(settings, at_once(events), options)
    if sent.without_outcome:
        raise BusUnavailable("the event is on the bus: look whether it was applied before you send it again")
    if outcome is not None and not outcome.complete:
        why = "; ".join(f"{cause.reason}: {cause.message}" for cause in outcome.causes)
        raise InvalidEvent(f"the event is on the bus but was not applied ({why}): see `graphweft dlq list`")
    [*others, (partition, offset)] = sent.last.items()
    return None if others else f"{partition}:{offset}"
