"""The state of a deployment, as ``graphweft status`` and the console show it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, StoredRules, newest, own_rules
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.engine.failures.dead_letter_counts import DeadLetterCause, count_causes
from graphweft_workers.new_project import is_default
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore, lost_rule_sets
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.app_uses import AppUses, app_uses
from graphweft_workers.wiring.archive_state import ArchiveState, archive_state
from graphweft_workers.wiring.connections import request_fault
from graphweft_workers.wiring.default_rules import has_default_rules
from graphweft_workers.wiring.job_states import JobState, job_states
from graphweft_workers.wiring.policies import file_faults
from graphweft_workers.wiring.rule_faults import read_faults

MAX_LETTERS: Final = 10_000
"""Dead letters that are counted by their cause, the oldest."""
_MOST_SETS: Final = 20
"""Rule sets whose workflows are read: each may have some hundred kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """Positions, lag, workers, dead letters, active rules, the archive, jobs of memory, and the use of apps."""

    partitions: Sequence[PartitionStatus]
    letters: int
    causes: Sequence[DeadLetterCause]
    rules: Mapping[str, Activation]
    """By scope: the active rule set."""
    workflows: Mapping[str, Sequence[str]]
    """By digest: the workflows of active rule sets. Sets that the bus has lost are missing, and if many apps have own
    ones, the sets of further apps."""
    with_defaults: Collection[str]
    """Digests of the rule sets among them that have the default rules."""
    rule_faults: str
    """The errors of the folder of rules that a process looked at last; their workflows are not as in the folder."""
    archive: ArchiveState
    uses: AppUses
    faults: Mapping[str, str]
    """Faults of files that the settings name."""
    parked: Sequence[tuple[int, str, ParkedApp]]
    """Partition and app of apps that are behind."""
    again: Sequence[tuple[int, str, str]]
    """Partition, and two offsets: up to the first one, events have taken effect again that had before, of those up to
    the second. The graphs were older than the log."""
    lost: Mapping[str, Activation]
    """Rule sets that the bus has lost, by digest: of the active ones, and of all while an app waits for one."""
    jobs: Sequence[JobState] = ()
    request_fault: str = ""
    """Why the bus takes no context requests."""
    server_faults: Mapping[str, str] = field(default_factory=dict[str, str])
    """By ``bus`` and ``graph``: why the server answers nothing, or refuses writes, so that nothing goes on."""

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "partitions": [
                {
                    "id": p.id,
                    "position": p.position,
                    "end": p.end,
                    "lag": p.lag,
                    "owner": p.owner,
                    **({"fault": p.fault} if p.fault else {}),
                }
                for p in self.partitions
            ],
            "server_faults": dict(self.server_faults),
            "context_requests": self.request_fault or "ok",
            "lag": sum(p.lag for p in self.partitions),
            "dead_letters": self.letters,
            "without_effect": [asdict(cause) for cause in self.causes],
            "rules": [
                {
                    "app_id": scope,
                    "rules": each.digest,
                    "default": is_default(each.digest),
                    "with_default_rules": each.digest in self.with_defaults,
                    "workflows": list(self.workflows.get(each.digest, ())),
                    "number": each.number,
                    "since": each.time.isoformat(),
                }
                for scope, each in self.rules.items()
            ],
            "archive": asdict(self.archive),
            "jobs": [each.to_json() for each in self.jobs],
            "apps": self.uses.to_json(),
            "effects_refused": list(self.uses.effects),
            "clocks": list(self.uses.clocks),
            "faulty_files": dict(self.faults),
            "faulty_rules": self.rule_faults.splitlines(),
            "lost_rules": [
                {"rules": digest, "app_id": each.scope, "since": each.time.isoformat(), "next": how_to_restore(each)}
                for digest, each in self.lost.items()
            ],
            "again": [{"partition": number, "at": at, "until": until} for number, at, until in self.again],
            "parked": [{"partition": number, "app_id": app, **asdict(each)} for number, app, each in self.parked],
        }


async def read_status(settings: Settings, bus: Bus, *, letters_size: int | None = None) -> ServiceStatus:
    """Return the state of the deployment now. Raises ``BusUnavailable``.

    ``letters_size`` limits the bytes of the dead letters that are read for the causes.
    """
    partitions, letters = await bus.partitions.status(), await letter_count(bus.dead_letters)
    activations = await bus.rules.activations()
    everywhere = newest(activations, ALL_APPS)
    rules = ({} if everywhere is None else {ALL_APPS: everywhere}) | own_rules(activations)
    notes = {p.id: PositionNote.decode(p.note) for p in partitions}
    parked = [(number, app, each) for number, note in notes.items() for app, each in note.parked.items()]
    waits = any(each.why == "rules_lost" for _, _, each in parked)
    causes = (
        count_causes(await bus.dead_letters.read(limit=MAX_LETTERS, size=letters_size, whole=False)) if letters else []
    )
    archive = await archive_state(settings, bus, partitions)
    jobs = await job_states(settings, bus)
    files = {digest: each.files for digest, each in (await _stored(bus, rules)).items()}
    return ServiceStatus(
        partitions=partitions,
        letters=letters,
        causes=causes,
        rules=rules,
        workflows={digest: _workflows(each) for digest, each in files.items()},
        with_defaults=[digest for digest, each in files.items() if has_default_rules(each)],
        rule_faults=await read_faults(bus),
        archive=archive,
        uses=await app_uses(settings, bus),
        faults=file_faults(settings),
        parked=parked,
        again=[(number, note.again_at, note.again) for number, note in notes.items() if note.again],
        lost=await lost_rule_sets(bus.rules, activations if waits else rules.values()),
        jobs=jobs,
        request_fault=await request_fault(settings),
        server_faults=await _server_faults(settings),
    )


async def _server_faults(settings: Settings) -> dict[str, str]:
    try:
        graph = await graph_driver(settings.graph).write_fault(settings.graph)
    except GraphUnavailable as error:
        graph = " ".join(str(error).split())
    found = {"bus": await bus_driver(settings.bus).write_fault(settings.bus), "graph": graph}
    return {name: fault for name, fault in found.items() if fault}


async def _stored(bus: Bus, rules: Mapping[str, Activation]) -> dict[str, StoredRules]:
    """Return the active rule sets: for all apps, and of the first apps with their own."""
    digests = dict.fromkeys(each.digest for _, each in sorted(rules.items(), key=lambda item: item[0] != ALL_APPS))
    found = {digest: await bus.rules.stored(digest) for digest in list(digests)[:_MOST_SETS]}
    return {digest: stored for digest, stored in found.items() if stored is not None}


def _workflows(files: Collection[str]) -> list[str]:
    """Return the workflows that have a rule file; without the rules package, which takes long to load."""
    parts = (name.split("/") for name in files)
    return sorted({each[0] for each in parts if len(each) == 2 and each[0][0] not in "_."})
