"""``graphweft status``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from graphweft_workers.cli.app_uses import app_uses
from graphweft_workers.cli.connections import running_bus
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import print_json, print_table, say, warn
from graphweft_workers.engine.dead_letter_counts import count_causes
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.roles.archive_state import archive_state
from graphweft_workers.roles.policies import file_faults
from graphweft_workers.roles.settings import Settings

_MAX_LETTERS: Final = 10_000
_MAX_CAUSES: Final = 50
_FEW: Final = 8
"""Partitions that are all shown."""


@command
async def status(data: Data = None, json: Json = False) -> None:
    """Show the position and the lag of every partition, apps that are behind, the use and quotas of
    apps, the archive, and what had no effect."""
    settings = Settings.load(data=data)
    async with running_bus(settings) as bus:
        partitions, letters = await bus.status(), await bus.dead_letter_count()
        rules = {each.scope: each for each in await bus.activations() if each.restates is None}
        causes = count_causes(await bus.dead_letters(limit=_MAX_LETTERS)) if letters else []
        archive = await archive_state(settings, bus, partitions)
        uses = await app_uses(settings, bus)
    faults = file_faults(settings)
    parked = [(p.id, app, each) for p in partitions for app, each in PositionNote.decode(p.note).parked.items()]
    if json:
        rows = [{"id": p.id, "position": p.position, "end": p.end, "lag": p.lag, "owner": p.owner} for p in partitions]
        print_json(
            {
                "partitions": rows,
                "lag": sum(p.lag for p in partitions),
                "dead_letters": letters,
                "without_effect": [asdict(cause) for cause in causes],
                "rules": [
                    {"app_id": scope, "rules": each.digest, "number": each.number, "since": each.time.isoformat()}
                    for scope, each in rules.items()
                ],
                "archive": asdict(archive),
                "apps": uses.to_json(),
                "faulty_files": faults,
                "parked": [{"partition": number, "app_id": app, **asdict(each)} for number, app, each in parked],
            }
        )
        return
    shown = partitions if len(partitions) <= _FEW else [p for p in partitions if p.lag or p.owner is None][:_FEW]
    if shown:
        print_table(
            ("partition", "position", "end", "lag", "worker"),
            [(str(p.id), p.position, p.end, p.lag, p.owner or "none") for p in shown],
        )
    if not shown:
        say(f"all {len(partitions)} partitions have a worker and no lag")
    elif len(shown) < len(partitions):
        say(f"{len(partitions) - len(shown)} other partitions; `graphweft status --json` shows all")
    if rules:
        print_table(
            ("app", "rules", "active since"),
            [(scope, each.digest[:12], f"{each.time:%Y-%m-%d %H:%M:%SZ}") for scope, each in rules.items()],
            title="Rules",
        )
    if parked:
        print_table(
            ("app", "partition", "applied up to", "reason", "since"),
            [(app, str(number), each.at, each.why, _clock(each.since)) for number, app, each in parked],
            title="Apps that are behind the others of their partition",
        )
    uses.show()
    if causes:
        print_table(
            ("app", "rule", "reason", "events", "letters", "place", "message"),
            [(c.app_id, c.name, c.reason, c.events, c.letters, c.place, c.message) for c in causes[:_MAX_CAUSES]],
            title="Without effect",
        )
    if len(causes) > _MAX_CAUSES:
        say(f"and {len(causes) - _MAX_CAUSES} other causes: run `graphweft status --json`")
    if letters > _MAX_LETTERS:
        say(f"only the first {_MAX_LETTERS:,} dead letters are counted by cause")
    for fault in faults.values():
        warn(f"{fault}\nrunning processes keep the earlier content of this file, and new ones do not start")
    say(archive.text())
    say(f"{letters} dead letters" + (" (graphweft dlq list)" if letters else ""))


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
