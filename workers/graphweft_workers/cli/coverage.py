"""``graphweft coverage``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from graphweft_contracts import Event, InvalidEvent
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.emit import Faults, events_of_lines, numbered_lines, open_file
from graphweft_workers.cli.event_lines import tell_progress
from graphweft_workers.cli.options import MOST_SCANNED, Data, Json, Since, check_app, command, number, since_time
from graphweft_workers.cli.output import (
    INVALID_EVENTS,
    print_json,
    print_table,
    printable,
    say,
    short,
    warn,
)
from graphweft_workers.cli.publishing import interruptible
from graphweft_workers.engine.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.series import number_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.reports.coverage import Coverage
from graphweft_workers.reports.rules_at import RulesAt, activation_at
from graphweft_workers.reports.scan import Decoder, ScanLimits, ends, forwards, newest_first
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import load_rules, rules_maker
from graphweft_workers.wiring.running import running_bus

_MOST: Final = 50
_CELL: Final = 120


@command
async def coverage(
    log: Annotated[
        str | None, typer.Argument(metavar="LOG", help="File with one event on each line.", show_default="the bus")
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="Judge by the rules in this folder.", show_default="see the page on commands"),
    ] = None,
    app: Annotated[str | None, typer.Option("--app", help="Only events of this app.")] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Of the bus, the newest entries.")] = MOST_SCANNED,
    fail_under: Annotated[
        float | None,
        typer.Option("--fail-under", parser=number(0, 100), metavar="PERCENT", help="Exit with 1 below this share."),
    ] = None,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Count which events match no rule, which mutations never match, and which are skipped.

    Events of a file are judged by the rules of the folder; events of the bus by the rules that were active at their
    place, or by those of --rules. Copies and retries are not counted as events.
    """
    if app is not None:
        check_app(app)
    oldest = since_time(since)
    settings = Settings.load(data=data, rules=rules)
    if log is not None:
        with interruptible():
            found = _of_file(Path(log), settings, app)
    else:
        async with running_bus(settings) as bus:
            limits = ScanLimits(entries=limit, since=oldest, on_progress=tell_progress)
            found = await _of_bus(bus, settings, app, limits, folder=rules is not None)
        if limits.cut:
            warn(f"only the newest {counted(limit, 'entry was', 'entries were')} read: see --limit")
    if json:
        print_json(_dict(found))
    else:
        _print(found)
    percent = found.percent
    return 1 if fail_under is not None and (percent is None or percent < fail_under) else None


def _of_file(path: Path, settings: Settings, app: str | None) -> Coverage:
    from graphweft_workers.reports.judging import judge_event

    rules = load_rules(settings)
    found = Coverage()
    found.add_rules(rules)
    known: set[tuple[str, ...]] = set()
    for event in _events(path):
        if app is not None and event.appid != app:
            continue
        identity = (event.appid, *event.identity)
        if identity in known:
            found.copies += 1
            continue
        known.add(identity)
        found.add(event, judge_event(rules, event, explain=False))
    return found


def _events(path: Path) -> Iterator[Event]:
    faults = Faults()
    events = 0
    with open_file(str(path)) as stream:
        for event in events_of_lines(numbered_lines(stream, str(path)), str(path), faults):
            events += 1
            yield event
    if faults.count:
        faults.report_repeats()
        raise InvalidEvent(f"{path}: {faults.text(*INVALID_EVENTS)}")
    if not events:
        raise InvalidEvent(f"{path}: it holds no event")


async def _of_bus(bus: Bus, settings: Settings, app: str | None, limits: ScanLimits, *, folder: bool) -> Coverage:
    from graphweft_workers.reports.judging import judge_event

    given = load_rules(settings) if folder else None
    decoder = await Decoder.of(bus)
    active = RulesAt(bus, rules_maker(settings))
    found = Coverage()
    for each in [given] if given is not None else await active.current(decoder.activations, app):
        found.add_rules(each)
    partitions = None if app is None else (await bus.partitions.layout()).partitions_of(app)
    known = await ends(bus, partitions)
    first: dict[int, str] = {}
    async for partition, entry in limits.within(newest_first(bus.log, known)):
        first[partition] = entry.offset
    for partition, offset in first.items():
        recent = RecentEvents()
        before = [entry.offset for entry in await bus.log.before(partition, offset, limit=2) if entry.offset != offset]
        async for entry in forwards(bus.log, partition, before[-1] if before else "", known[partition]):
            seen = await decoder.see(partition, entry)
            event = None if seen.kind == "activation" else seen.event
            identity = None if event is None else identity_of(entry, event)
            if recent.is_copy(identity, None if event is None else number_of(entry, event), entry.offset):
                found.copies += app in (None, seen.app_id)
            elif seen.kind == "invalid" and app is None:
                found.add_invalid(seen.position)
            elif event is not None and app in (None, event.appid):
                if seen.retry is not None:
                    found.retries += 1
                    continue
                rules = given
                if rules is None:
                    place = (event.appid, partition, entry.offset)
                    rules = await active.rules(activation_at(decoder.activations, *place))
                found.add(event, judge_event(rules, event, explain=False), seen.position)
    return found


def _print(found: Coverage) -> None:
    if found.unmatched:
        groups = sorted(found.unmatched.values(), key=lambda each: -each.events)
        print_table(
            ("type", "workflow", "events", "example", "reason"),
            [
                (g.type, _cell(g.workflow or "none"), g.events, _cell(g.position or g.example), _cell(g.reason))
                for g in groups[:_MOST]
            ],
            title="Events without a rule",
        )
        _say_more(len(groups))
    if found.never:
        print_table(
            ("workflow", "mutation", "place"),
            [(m.workflow, f"{m.rule}/{m.mutation}", m.place) for m in found.never[:_MOST]],
            title="Mutations that never match",
        )
        _say_more(len(found.never))
    skipped = [each for each in found.mutations.values() if each.skipped]
    if skipped:
        print_table(
            ("workflow", "mutation", "matched", "skipped", "reason"),
            [
                (m.workflow, f"{m.rule}/{m.mutation}", m.matched, m.skipped, _cell(m.reasons.most_common(1)[0][0]))
                for m in sorted(skipped, key=lambda each: -each.skipped)[:_MOST]
            ],
            title="Skips",
        )
        _say_more(len(skipped))
    others = [("copies", found.copies), ("retries", found.retries), ("invalid entries", found.invalid)]
    rest = "".join(f", {count:,} {name}" for name, count in others if count)
    share = "" if found.percent is None else f" ({found.percent:.1f}%)"
    match = "matches" if found.matched == 1 else "match"
    of = f"{found.matched:,} of {counted(found.events, 'event')} {match} a rule{share}"
    say(f"{of}, {found.skipped:,} only with skips{rest}")


def _say_more(count: int) -> None:
    if count > _MOST:
        say(f"and {count - _MOST} others: run `graphweft coverage --json`")


def _cell(text: str) -> str:
    return printable(short(text, _CELL))


def _dict(found: Coverage) -> dict[str, Any]:
    return {
        "events": found.events,
        "matched": found.matched,
        "skipped": found.skipped,
        "percent": found.percent,
        "copies": found.copies,
        "retries": found.retries,
        "invalid": found.invalid,
        "invalid_example": found.invalid_example,
        "unmatched": [
            {
                "type": each.type,
                "workflow": each.workflow,
                "events": each.events,
                "example": each.example,
                "position": each.position,
                "reason": each.reason,
            }
            for each in sorted(found.unmatched.values(), key=lambda each: -each.events)
        ],
        "mutations": [
            {
                "workflow": each.workflow,
                "rule": each.rule,
                "mutation": each.mutation,
                "place": each.place,
                "matched": each.matched,
                "skipped": each.skipped,
                "reasons": dict(each.reasons),
            }
            for each in found.mutations.values()
        ],
    }
