"""``graphweft status``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.app_uses import show_uses
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import print_json, print_table, say, shown_rules, warn
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus
from graphweft_workers.wiring.status import MAX_LETTERS, ServiceStatus, read_status

_MAX_CAUSES: Final = 50
_FEW: Final = 8
"""Partitions that are all shown."""


@command
async def status(data: Data = None, json: Json = False) -> None:
    """Show the position and the lag of every partition, apps that are behind, the use and quotas of
    apps, the archive, and what had no effect."""
    settings = Settings.load(data=data)
    async with running_bus(settings) as bus:
        found = await read_status(settings, bus)
    if json:
        print_json(found.to_json())
        return
    partitions, causes = found.partitions, found.causes
    behind = [p for p in partitions if p.lag or p.owner is None or p.fault]
    shown = partitions if len(partitions) <= _FEW else behind[:_FEW]
    if shown:
        print_table(
            ("partition", "position", "end", "lag", "worker"),
            [(str(p.id), p.position, p.end, p.lag, p.owner or "none") for p in shown],
        )
    if not shown:
        read = counted(len(partitions), "partition has a worker and no lag", "partitions have a worker and no lag")
        say(f"all {read}" if len(partitions) > 1 else read)
    elif len(shown) < len(partitions):
        say(f"{counted(len(partitions) - len(shown), 'other partition')}; `graphweft status --json` shows all")
    if found.rules:
        print_table(
            ("app", "rules", "workflows", "active since"),
            [
                (scope, shown_rules(each.digest), _workflows(found, each.digest), f"{each.time:%Y-%m-%d %H:%M:%SZ}")
                for scope, each in found.rules.items()
            ],
            title="Rules",
        )
    if found.parked:
        print_table(
            ("app", "partition", "applied up to", "reason", "since"),
            [(app, str(number), each.at, each.why, _clock(each.since)) for number, app, each in found.parked],
            title="Apps that are behind",
        )
    for each in partitions:
        if each.fault:
            warn(f"partition {each.id}: {each.fault}")
    if found.request_fault:
        warn(f"the queue of context requests: {found.request_fault}")
    if found.again:
        print_table(
            ("partition", "applied up to", "of"),
            [(str(number), at, until) for number, at, until in found.again],
            title="Graphs that were older than the log: events are applied again",
        )
    for lost in found.lost.values():
        warn(how_to_restore(lost))
    show_uses(found.uses)
    if causes:
        print_table(
            ("app", "rule", "reason", "events", "letters", "place", "message"),
            [(c.app_id, c.name, c.reason, c.events, c.letters, c.place, c.message) for c in causes[:_MAX_CAUSES]],
            title="Without effect",
        )
    if len(causes) > _MAX_CAUSES:
        say(f"and {counted(len(causes) - _MAX_CAUSES, 'other cause')}: run `graphweft status --json`")
    if found.letters > MAX_LETTERS:
        say(f"only the first {MAX_LETTERS:,} dead letters are counted by cause")
    if found.rule_faults:
        warn(found.rule_faults)
    for fault in found.faults.values():
        warn(f"{fault}\nrunning processes keep the earlier content of this file, and new ones do not start")
    say(found.archive.text())
    say(counted(found.letters, "dead letter") + (" (graphweft dlq list)" if found.letters else ""))


def _workflows(found: ServiceStatus, digest: str) -> str:
    names = list(found.workflows.get(digest, ()))
    shown = [f"{name} (default rules)" if _is_default(found, digest, name) else name for name in names[:_FEW]]
    more = [f"and {len(names) - _FEW} more"] if len(names) > _FEW else []
    return ", ".join([*shown, *more])


def _is_default(found: ServiceStatus, digest: str, workflow: str) -> bool:
    return workflow == DEFAULT_WORKFLOW and digest in found.with_defaults


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
