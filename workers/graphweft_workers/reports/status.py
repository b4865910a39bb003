"""The state of a deployment, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.plurals import counted
from graphweft_workers.engine.usage.app_use import AppUse
from graphweft_workers.reports.report import Notice, Part, TextTable
from graphweft_workers.reports.rule_sets import named_digest
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore
from graphweft_workers.wiring.app_uses import AppUses
from graphweft_workers.wiring.job_states import JobState
from graphweft_workers.wiring.status import MAX_LETTERS, ServiceStatus

_MAX_CAUSES: Final = 50
_FEW: Final = 8
"""Partitions that are all shown."""
_MOST: Final = 20
"""Apps of the table of uses, and apps with a line of their own."""
_SPANS: Final = {
    "no_operation": "not about agents, or of a convention that graphweft does not read",
    "other_operation": "of operations that give no event",
    "refused": "refused (the log of the gateway says why)",
}
_KEEP_NO: Final = ("dead letter keeps no event", "dead letters keep no event")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Positions, apps that are behind, uses and quotas, the archive, and what had no effect."""

    status: ServiceStatus

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return self.status.to_json()

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        status = self.status
        partitions, causes = status.partitions, status.causes
        behind = [p for p in partitions if p.lag or p.owner is None or p.fault]
        shown = partitions if len(partitions) <= _FEW else behind[:_FEW]
        if shown:
            yield TextTable(
                ("partition", "position", "end", "lag", "worker"),
                [(str(p.id), p.position, p.end, p.lag, p.owner or "none") for p in shown],
            )
        if not shown:
            read = counted(len(partitions), "partition has", "partitions have") + " a mutation worker and no lag"
            yield f"all {read}" if len(partitions) > 1 else read
        elif len(shown) < len(partitions):
            yield f"{counted(len(partitions) - len(shown), 'other partition')}; `graphweft status --json` shows all"
        if status.rules:
            yield TextTable(
                ("app", "rules", "workflows", "active since"),
                [
                    (
                        scope,
                        named_digest(each.digest),
                        _workflows(status, each.digest),
                        f"{each.time:%Y-%m-%d %H:%M:%SZ}",
                    )
                    for scope, each in status.rules.items()
                ],
                title="Rules",
            )
        if status.parked:
            yield TextTable(
                ("app", "partition", "applied up to", "reason", "since"),
                [(app, str(number), each.at, each.why, _clock(each.since)) for number, app, each in status.parked],
                title="Apps that are behind",
            )
        for server, fault in status.server_faults.items():
            yield Notice(f"the server of the {server}: {fault}")
        for each in partitions:
            if each.fault:
                yield Notice(f"partition {each.id}: {each.fault}")
        if status.request_fault:
            yield Notice(f"the queue of context requests: {status.request_fault}")
        if status.again:
            yield TextTable(
                ("partition", "applied up to", "of"),
                [(str(number), at, until) for number, at, until in status.again],
                title="Graphs that were older than the log: events are applied again",
            )
        for lost in status.lost.values():
            yield Notice(how_to_restore(lost))
        for fault in (*status.uses.effects, *status.uses.clocks):
            yield Notice(fault)
        yield from job_parts(status.jobs)
        yield from use_parts(status.uses)
        if causes:
            yield TextTable(
                ("app", "rule", "reason", "events", "letters", "place", "message"),
                [(c.app_id, c.name, c.reason, c.events, c.letters, c.place, c.message) for c in causes[:_MAX_CAUSES]],
                title="Without effect",
            )
        if len(causes) > _MAX_CAUSES:
            yield f"and {counted(len(causes) - _MAX_CAUSES, 'other cause')}: run `graphweft status --json`"
        if status.letters > MAX_LETTERS:
            yield f"only the first {MAX_LETTERS:,} dead letters are counted by cause"
        if status.rule_faults:
            yield Notice(status.rule_faults)
        for fault in status.faults.values():
            yield Notice(f"{fault}\nrunning processes keep the earlier content of this file, and new ones do not start")
        yield status.archive.text()
        yield counted(status.letters, "dead letter") + (" (graphweft dlq list)" if status.letters else "")


def job_parts(jobs: Sequence[JobState]) -> Iterator[Part]:
    """Yield a table of the jobs of memory, what they wait for, and what they left out."""
    if jobs:
        yield TextTable(
            ("job", "lag", "without a worker", "waits since", "left out"),
            [
                (
                    each.group,
                    "" if each.lag is None else str(each.lag),
                    "" if each.lag is None else f"{len(each.idle)} of {counted(each.partitions, 'partition')}",
                    min((wait.since for wait in each.waits), default=""),
                    f"{sum(skip.count for skip in each.skips):,}",
                )
                for each in jobs
            ],
            title="Jobs of memory",
        )
    for each in jobs:
        for notice in each.notices():
            yield Notice(notice)
        for skip in each.skips[:_MOST]:
            yield f"{each.group}: {skip.text()}"
        if len(each.skips) > _MOST:
            more = counted(len(each.skips) - _MOST, "more app leaves something out", "more apps leave something out")
            yield f"{each.group}: {more}; `graphweft status --json` shows all"


def use_parts(uses: AppUses) -> Iterator[Part]:
    """Yield a table of the first apps, which apps lose events or queries, and what is over a quota."""
    if uses.apps:
        yield TextTable(
            ("app", "events/s", "stored", "dead letters", "graph", "names", "highest use", "refused"),
            [_row(use) for use in uses.apps[:_MOST]],
            title="Use",
        )
    if len(uses.apps) > _MOST:
        yield f"and {counted(len(uses.apps) - _MOST, 'other app')}; `graphweft status --json` shows all"
    hindered = [use for use in uses.apps if use.without_payload or use.without_turn]
    for use in hindered[:_MOST]:
        if use.without_payload:
            letters = counted(use.without_payload, *_KEEP_NO)
            yield f"{use.app_id}: {letters}: another one of the event does, or the quota is full; a retry reads the log"
        if use.without_turn:
            queries = counted(use.without_turn, "slow query", "slow queries")
            yield f"{use.app_id}: {queries} got no turn in time: make them quicker, or raise the budget"
    if len(hindered) > _MOST:
        more = counted(
            len(hindered) - _MOST, "more app has such letters or queries", "more apps have such letters or queries"
        )
        yield f"{more}; `graphweft status --json` shows all"
    copied = [use for use in uses.apps if use.copies]
    for use in copied[:_MOST]:
        yield f"{use.app_id}: {counted(use.copies, 'copy had', 'copies had')} no effect"
    if len(copied) > _MOST:
        more = counted(len(copied) - _MOST, "more app has copies", "more apps have copies")
        yield f"{more}; `graphweft status --json` shows all"
    ignored = [use for use in uses.apps if use.spans]
    for use in ignored[:_MOST]:
        reasons = ", ".join(f"{number:,} {_SPANS.get(reason, reason)}" for reason, number in use.spans.most_common())
        yield f"{use.app_id}: {counted(use.spans.total(), 'span', 'spans')} without an event: {reasons}"
    if len(ignored) > _MOST:
        more = counted(len(ignored) - _MOST, "more app has such spans", "more apps have such spans")
        yield f"{more}; `graphweft status --json` shows all"
    for note in uses.notes:
        yield Notice(note)


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


def _workflows(status: ServiceStatus, digest: str) -> str:
    names = list(status.workflows.get(digest, ()))
    shown = [f"{name} (default rules)" if _is_default(status, digest, name) else name for name in names[:_FEW]]
    more = [f"and {len(names) - _FEW} more"] if len(names) > _FEW else []
    return ", ".join([*shown, *more])


def _is_default(status: ServiceStatus, digest: str, workflow: str) -> bool:
    return workflow == DEFAULT_WORKFLOW and digest in status.with_defaults


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
