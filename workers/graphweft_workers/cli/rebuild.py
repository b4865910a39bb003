"""``graphweft rebuild``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graphweft_contracts import GraphweftError, InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.layout import ALL_APPS
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import ArchiveOnly, Data, Json, check_app, command
from graphweft_workers.cli.output import print_error, show, warn, warn_all
from graphweft_workers.cli.replay_progress import replay_progress
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.rebuild import RebuildReport, losses_of
from graphweft_workers.reports.report import PlainReport, TextTable
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.garbage_collection import collect_less_often
from graphweft_workers.text.iso_time import in_utc, iso_time
from graphweft_workers.wiring.rules import checked_rules, load_given_rules, logged_rules
from graphweft_workers.wiring.running import running_graph, running_log
from graphweft_workers.wiring.second_graph import drop_second, second_place
from graphweft_workers.wiring.snapshots import make_restoring

if TYPE_CHECKING:
    from graphweft_rules import RuleSet
    from graphweft_workers.replay.graphs_lease import GraphsLease
    from graphweft_workers.rule_sets.active_rules import LoggedRules

BESIDE: Final = ".rebuilt"
"""Its dot cannot be in the id of an app."""

type To = datetime | dict[int, str] | None
"""A time, or an offset by partition; None for the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPlace:
    """Where the second graph is."""

    into: Annotated[
        str | None, typer.Option("--into", metavar="URL", help="Graph server of the new graph.", show_default="same")
    ] = None
    graph_template: Annotated[
        str | None,
        typer.Option("--graph-template", help="Name of the new graph; holds {app_id}.", show_default="see the page"),
    ] = None

    def of(self, settings: Settings, app: str) -> Settings:
        """Return the settings with the place. Raises ``InvalidSettings``."""
        return second_place(settings, app, into=self.into, template=self.graph_template, suffix=BESIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """What to rebuild, and how."""

    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="POSITION|TIME", help="Stop after this position, or at this time of the log."),
    ] = None
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="All events follow the rules of this folder.", show_default="as lived"),
    ] = None
    as_lived: Annotated[
        bool, typer.Option("--as-lived", help="Events follow the rules that were active at their place; the default.")
    ] = False
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the live graph; exit with 1.")] = False
    swap: Annotated[
        bool, typer.Option("--swap", help="Put the new graph in the place of the live one; with --verify, if equal.")
    ] = False
    accept_losses: Annotated[
        bool, typer.Option("--accept-losses", help="With --swap: the log has lost what the live graph holds; drop it.")
    ] = False
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted rebuild.")] = False
    drop: Annotated[
        bool, typer.Option("--drop", help="Delete the graph at the place of the new one, and build none.")
    ] = False

    def check(self) -> None:
        """Raise ``InvalidSettings`` for options that exclude each other."""
        if self.verify and self.to:
            raise InvalidSettings("--verify compares with the live graph as it is now: leave out --to")
        if self.swap and self.to:
            raise InvalidSettings("--swap needs a graph that is as far as the live one: leave out --to")
        if self.rules is not None and self.as_lived:
            raise InvalidSettings("--rules and --as-lived exclude each other: give one of them")
        if self.rules is not None and self.verify:
            raise InvalidSettings("--rules makes another graph than the live one: `graphweft diff` compares both")
        if self.accept_losses and not self.swap:
            raise InvalidSettings("--accept-losses is about the live graph, which only --swap replaces: add --swap")
        if self.drop and (self.to or self.rules or self.as_lived or self.verify or self.swap or self.resume):
            raise InvalidSettings("--drop only deletes a graph: use it without other options of a rebuild")


@command
async def rebuild(
    place: SecondPlace,
    options: RebuildOptions,
    app: Annotated[str | None, typer.Option("--app", help="The app (tenant).")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every app that has a graph or events, in turn.")] = False,
    archive_only: ArchiveOnly = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Build an app's graph again from the log, as a new graph beside the live one, which stays as it is without --swap.

    Each event follows the rules that were active at its place in the log, or those of --rules. --verify compares both
    graphs afterwards.
    """
    options.check()
    if (app is None) != every:
        raise InvalidSettings("give either --app or --all")
    if app is not None:
        check_app(app)
        place.of(Settings.load(data=data), app)
    settings = Settings.load(data=data)
    to = read_to(options.to or [])
    set_up_command_logs(settings)
    given = None if options.rules is None else load_given_rules(settings, options.rules)
    async with running_log(settings, archive_only=archive_only) as bus, running_graph(settings) as live:
        if given is not None and options.rules is not None:
            given = await checked_rules(given, options.rules, bus, app or ALL_APPS, live)
        await check_to(bus, to)
        rules = logged_rules(settings, bus, without_lost=True)  # only the apps whose events need a lost one fail
        work = _RebuildWork(settings, bus, live, rules, place, options, given, to)
        if app is not None:
            return await _one(work, app, json=json)
        return await _all(work, json=json)


@dataclass(frozen=True, slots=True)
class _RebuildWork:
    """What the rebuilds of all apps share."""

    settings: Settings
    bus: Bus
    live: GraphStore
    rules: LoggedRules
    place: SecondPlace
    options: RebuildOptions
    given: RuleSet | None
    to: To

    async def rebuild(self, app: str) -> RebuildReport:
        """Rebuild one app's graph, while no other command makes or deletes one of the app."""
        lease = self._lease(app, "rebuild --swap" if self.options.swap else "rebuild")
        async with lease.held():
            return await self._rebuild(app, lease)

    def _lease(self, app: str, command: str) -> GraphsLease:
        from graphweft_workers.replay.graphs_lease import GraphsLease

        return GraphsLease.of(self.bus, app, f"graphweft {command}")

    async def _rebuild(self, app: str, lease: GraphsLease) -> RebuildReport:
        options = self.options
        place = self.place.of(self.settings, app)
        report = RebuildReport(
            app=app,
            graph=place.graph_template.replace("{app_id}", app),
            verify=options.verify,
            swap=options.swap,
            given=self.given.digest if self.given is not None else "",
        )
        with replay_progress(app) as (tell, expect):
            async with running_graph(place, live=self.settings) as graph:
                from graphweft_workers.replay.app_log import AppLog
                from graphweft_workers.replay.rebuild import LogLost, Rebuild
                from graphweft_workers.replay.second_queries import rule_sets

                log = AppLog(bus=self.bus, app_id=app, live=self.live)

                async def begun(*, resume: bool) -> Rebuild:
                    restoring = make_restoring(self.settings, self.bus, graph, app, warn)
                    begun = Rebuild(
                        log, graph, self.rules, given=self.given, tell=tell, restoring=restoring, lease=lease
                    )
                    await begun.begin(resume=resume, swap=options.swap)
                    return begun

                work = await begun(resume=options.resume)
                if options.swap and not options.accept_losses:
                    try:
                        if await work.refuse_losses():
                            work = await begun(resume=False)
                    except LogLost as error:
                        raise InvalidSettings(f"{error}, or repeat the command with --accept-losses") from error
                report.resumed, report.gaps = work.continued, work.gaps
                if self.to is None and not options.resume:
                    expect(await log.entry_count())
                collect_less_often()
                started = SYSTEM_CLOCK.monotonic()
                before: Sequence[RuleSet] = ()
                known = work.continued or await self.live.whole.graph_id(app)
                if options.verify:
                    report.compared = await work.compare()
                    if report.not_compared:
                        report.parked_for = await log.parked_for()
                elif not options.swap or self.given is not None or not known:
                    await work.run(await log.ends(self.to) if isinstance(self.to, datetime) else self.to)
                report.unknown = not known and not work.restored and not any(each.events for each in work.done.values())
                if report.unknown:
                    await graph.whole.drop(app)  # it is empty, and a swap would make an app of it
                elif options.swap and (not options.verify or report.same):
                    if self.given is not None:
                        before = await rule_sets(log, self.rules)
                        report.restated = await work.restate()
                    await work.swap()
                    report.swapped = True
                if not report.unknown and not report.not_compared:
                    old, new = (graph, self.live) if report.swapped else (self.live, graph)
                    report.losses = await losses_of(
                        old, new, log, self.rules, fewer=report.swapped and self.given is None, warn=warn, before=before
                    )
                report.elapsed_s = SYSTEM_CLOCK.monotonic() - started
                report.done, report.restored = work.done, work.restored
        if self.given is not None:
            await self.rules.refresh()
            report.active = self.rules.current(app).digest
        return report

    async def drop(self, app: str) -> str | None:
        """Delete the second graph of an app; return its name, or None if there was none."""
        async with self._lease(app, "rebuild --drop").held():
            return await drop_second(self.place.of(self.settings, app), app, self.live, self.settings)


async def _one(work: _RebuildWork, app: str, *, json: bool) -> int | None:
    if work.options.drop:
        dropped = await work.drop(app)
        said = f"deleted the graph {dropped!r}" if dropped else f"there is no second graph of {app!r}"
        show(PlainReport({"dropped": dropped}, [said]), json=json)
        return None
    report = await work.rebuild(app)
    show(report, json=json)
    warn_all(report.warnings())
    return 1 if report.failed else None


async def _all(work: _RebuildWork, *, json: bool) -> int | None:
    from graphweft_workers.replay.app_log import apps_of_log
    from graphweft_workers.wiring.apps import apps_of_graphs

    apps = sorted({*await apps_of_graphs(work.live), *await apps_of_log(work.bus)})
    rows: list[dict[str, Any]] = []
    for app in apps:
        try:
            if work.options.drop:
                rows.append({"app": app, "ok": True, "dropped": await work.drop(app)})
                continue
            report = await work.rebuild(app)
        except GraphweftError as error:
            print_error(GraphweftError(f"{app}: {error}"))
            rows.append({"app": app, "ok": False, "error": str(error)})
            continue
        warn_all(report.warnings())
        rows.append({"app": app, "ok": not report.failed, **report.to_dict()})
    table = TextTable(("app", "result", "events", "dead letters", "seconds"), [*map(_row, rows)])
    none = [] if rows else ["no app has a graph or events"]
    show(PlainReport({"apps": rows}, [table, *none]), json=json)
    return None if all(row["ok"] for row in rows) else 1


def _row(row: dict[str, Any]) -> Sequence[Any]:
    if "error" in row:
        return (row["app"], "failed", None, None, None)
    if "dropped" in row:
        return (row["app"], "deleted" if row["dropped"] else "no second graph", None, None, None)
    if row["unknown"]:
        return (row["app"], "nothing to rebuild", None, None, None)
    result = "swapped" if row["swapped"] else {None: "rebuilt", True: "equal", False: "different"}[row.get("same")]
    events = sum(each["events"] for each in row["partitions"])
    return (row["app"], result if row["ok"] or "same" in row else "not compared", events, len(row["dead_letters"]),
            row["seconds"])  # fmt: skip


def read_to(given: Sequence[str]) -> To:
    """Return what ``--to`` says. Raises ``InvalidSettings``."""
    ends: dict[int, str] = {}
    times: list[datetime] = []
    for text in given:
        if re.fullmatch(r"[0-9]{1,9}:[0-9]+(-[0-9]+)?", text):
            partition, _, offset = text.partition(":")
            ends[int(partition)] = offset
            continue
        try:
            times.append(in_utc(iso_time(text)))
        except (ValueError, OverflowError) as error:
            raise InvalidSettings(
                f"invalid --to {text!r}: expected PARTITION:OFFSET, as `graphweft emit` prints it, or a time such as "
                "2026-02-01T10:00:00Z"
            ) from error
    if len(times) > 1 or (times and ends):
        raise InvalidSettings("--to is one time for all partitions, or positions of single partitions: give either")
    return times[0] if times else ends or None


async def check_to(bus: Bus, to: To) -> None:
    """Raise ``InvalidSettings`` for positions that the bus cannot have."""
    if to is None or isinstance(to, datetime):
        return
    most = await bus.partitions.count(fresh=True)
    for partition, offset in to.items():
        given = f"{partition}:{offset}"
        if partition >= most:
            raise InvalidSettings(f"invalid --to {given!r}: the bus has the partitions 0 to {most - 1}")
        if not bus.offsets.accepts(offset):
            raise InvalidSettings(f"invalid --to {given!r}: an offset of this bus has another form")
