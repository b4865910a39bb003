"""``graphweft rebuild``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from graphweft_contracts import DeadLetter, InvalidSettings
from graphweft_workers.cli.connections import running_bus, running_graph
from graphweft_workers.cli.options import App, Data, Json, command
from graphweft_workers.cli.output import print_json, say, warn
from graphweft_workers.cli.second_graph import second_place
from graphweft_workers.logs import set_up_logs
from graphweft_workers.ports.bus import Bus
from graphweft_workers.replay.rebuild import Compared, Rebuild
from graphweft_workers.replay.replay import Replayed
from graphweft_workers.roles.rules import logged_rules
from graphweft_workers.roles.settings import Settings

_TELL_S: Final = 2.0
_BESIDE: Final = ".rebuilt"
"""Its dot cannot be in the id of an app."""


@command
async def rebuild(
    app: App,
    into: Annotated[
        str | None, typer.Option("--into", metavar="URL", help="Graph server of the new graph.", show_default="same")
    ] = None,
    graph_template: Annotated[
        str | None,
        typer.Option("--graph-template", help="Name of the new graph; holds {app_id}.", show_default="see the page"),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="POSITION", help="Stop after this position; other partitions stay empty."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the live graph; exit with 1.")] = False,
    swap: Annotated[
        bool, typer.Option("--swap", help="Put the new graph in the place of the live one; with --verify, if equal.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted rebuild.")] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Build an app's graph again from the log, as a new graph beside the live one, which stays as it is without --swap.

    Each event follows the rules that were active at its place in the log. --verify compares both graphs afterwards.
    """
    if verify and to:
        raise InvalidSettings("--verify compares with the live graph as it is now: leave out --to")
    if swap and to:
        raise InvalidSettings("--swap needs a graph that is as far as the live one: leave out --to")
    settings = Settings.load(data=data)
    place = second_place(settings, app, into=into, template=graph_template, suffix=_BESIDE)
    ends = dict(map(_position, to or []))
    set_up_logs(settings.log_level if "log_level" in settings.model_fields_set else "critical", settings.log_format)
    telling = _Telling()
    async with running_bus(settings) as bus, running_graph(settings) as live, running_graph(place) as graph:
        work = Rebuild(bus, live, graph, logged_rules(settings, bus), app, tell=telling.tell)
        await _check_ends(bus, ends)
        await work.begin(resume=resume, swap=swap)
        started = time.monotonic()
        compared = None
        if verify:
            compared = await work.compare()
        elif not swap:
            await work.run(ends or None)
        swapped = swap and (not verify or (compared is not None and compared.live == compared.rebuilt))
        if swapped:
            await work.swap()
        elapsed = time.monotonic() - started
    name = place.graph_template.replace("{app_id}", app)
    if json:
        print_json(_dict(name, work.done, compared, elapsed) | {"swapped": swapped})
    else:
        _print(name, work.done, compared, elapsed)
        if swapped:
            say(f"The new graph is in the place of the live one. The graph from before is {name!r}: to go back, give")
            say("the same command with --resume.")
        elif swap:
            say("The graphs were not swapped.")
    if not any(each.events for each in work.done.values()) and not resume:
        warn(f"no event of the app {app!r} in the log matches a rule")
    if verify and compared is None:
        warn(f"the live graph of {app!r} kept changing: compare again with --resume when less is written")
        return 1
    return 1 if compared is not None and compared.live != compared.rebuilt else None


def _position(text: str) -> tuple[int, str]:
    if not re.fullmatch(r"[0-9]{1,9}:[0-9]+(-[0-9]+)?", text):
        raise InvalidSettings(f"invalid --to {text!r}: expected PARTITION:OFFSET, as `graphweft emit` prints it")
    partition, _, offset = text.partition(":")
    return int(partition), offset


async def _check_ends(bus: Bus, ends: Mapping[int, str]) -> None:
    if not ends:
        return
    most = await bus.partitions(fresh=True)
    for partition, offset in ends.items():
        given = f"{partition}:{offset}"
        if partition >= most:
            raise InvalidSettings(f"invalid --to {given!r}: the bus has the partitions 0 to {most - 1}")
        try:
            bus.is_after(offset, "")
        except ValueError as error:
            raise InvalidSettings(f"invalid --to {given!r}: an offset of this bus has another form") from error


class _Telling:
    """Says the progress on standard error, every two seconds."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def tell(self, done: Replayed) -> None:
        now = time.monotonic()
        if now - self._last < _TELL_S:
            return
        self._last = now
        rate = done.entries / (now - self._began)
        sys.stderr.write(f"{done.entries:,} entries read, {done.events:,} events applied, {rate:,.0f} entries/s\n")
        sys.stderr.flush()


def _dict(name: str, done: dict[int, Replayed], compared: Compared | None, elapsed: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "graph": name,
        "seconds": round(elapsed, 3),
        "partitions": [
            {"partition": number, "offset": each.offset, "entries": each.entries, "events": each.events}
            for number, each in sorted(done.items())
        ],
        "skips": _skips(done),
        "dead_letters": [letter.model_dump(mode="json") for letter in _letters(done)],
    }
    if compared is not None:
        found["same"] = compared.live == compared.rebuilt
        for key, digest in (("live", compared.live), ("rebuilt", compared.rebuilt)):
            found[key] = {"digest": digest.sha256, "nodes": digest.nodes, "relationships": digest.relationships}
    return found


def _skips(done: dict[int, Replayed]) -> int:
    return sum(each.skips.total() for each in done.values())


def _letters(done: dict[int, Replayed]) -> list[DeadLetter]:
    found: dict[str, DeadLetter] = {}
    for each in done.values():
        found |= each.letters
    return [found[letter_id] for letter_id in sorted(found)]


def _print(name: str, done: dict[int, Replayed], compared: Compared | None, elapsed: float) -> None:
    events = sum(each.events for each in done.values())
    say(f"{events:,} events applied to the graph {name!r} in {elapsed:.1f} s")
    if skips := _skips(done):
        say(f"{skips:,} mutations were skipped that the live graph has not skipped")
    for letter in _letters(done):
        say(f"failed, and has not failed live: {letter.rule}/{letter.mutation} at {letter.offset}: {letter.message}")
    if compared is None:
        return
    if compared.live == compared.rebuilt:
        say(f"equal to the live graph: {compared.live.sha256}")
        return
    for title, each in (("live", compared.live), ("rebuilt", compared.rebuilt)):
        say(f"{title}: {each.nodes:,} nodes, {each.relationships:,} relationships, {each.sha256}")
    say("The graphs differ. Something else than the rules has written to one, or a rule gives other results each time.")
