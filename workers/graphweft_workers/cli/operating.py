"""``graphweft status``, ``lint`` and ``doctor``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from graphweft_workers import heartbeat
from graphweft_workers.cli.options import Data, Json, Rules, command
from graphweft_workers.cli.output import console, print_json, print_table, say, say_aligned
from graphweft_workers.cli.running import running_bus, running_graph
from graphweft_workers.dead_letter_counts import count_causes
from graphweft_workers.mutation.position_note import PositionNote
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_rules.workflow import CompiledInjection, CompiledMutation
    from graphweft_workers.query_check import Checked

_MOST_LETTERS: Final = 10_000
_MOST_CAUSES: Final = 50
_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[bold red]fail[/]"}


class Process(StrEnum):
    """Whose process ``doctor --role`` looks at: a role of ``run``, by either of its names, or all there are."""

    MUTATION = "mutation"
    WORKER = "worker"
    INJECTION = "injection"
    RESPONDER = "responder"
    MEMORY = "memory"
    GATEWAY = "gateway"
    ANY = heartbeat.ANY_ROLE


@command
async def status(data: Data = None, json: Json = False) -> None:
    """Show where every partition stands, which apps are behind, and what had no effect: by app, rule and cause."""
    async with running_bus(Settings.load(data=data)) as bus:
        partitions, letters = await bus.status(), await bus.dead_letter_count()
        causes = count_causes(await bus.dead_letters(limit=_MOST_LETTERS)) if letters else []
    parked = [(p.id, app, each) for p in partitions for app, each in PositionNote.decode(p.note).parked.items()]
    if json:
        rows = [{"id": p.id, "position": p.position, "end": p.end, "lag": p.lag, "owner": p.owner} for p in partitions]
        print_json(
            {
                "partitions": rows,
                "lag": sum(p.lag for p in partitions),
                "dead_letters": letters,
                "without_effect": [asdict(cause) for cause in causes],
                "parked": [{"partition": number, "app_id": app, **asdict(each)} for number, app, each in parked],
            }
        )
        return
    print_table(
        ("partition", "position", "end", "lag", "worker"),
        [(str(p.id), p.position, p.end, p.lag, p.owner or "none") for p in partitions],
    )
    if parked:
        print_table(
            ("app", "partition", "applied up to", "why", "since"),
            [(app, str(number), each.at, each.why, _clock(each.since)) for number, app, each in parked],
            title="Apps that are behind the others of their partition",
        )
    if causes:
        print_table(
            ("app", "rule", "reason", "events", "letters", "place", "message"),
            [(c.app_id, c.name, c.reason, c.events, c.letters, c.place, c.message) for c in causes[:_MOST_CAUSES]],
            title="Without effect",
        )
    if len(causes) > _MOST_CAUSES:
        say(f"and {len(causes) - _MOST_CAUSES} other causes: graphweft status --json")
    if letters > _MOST_LETTERS:
        say(f"counted are the first {_MOST_LETTERS:,} letters")
    say(f"{letters} dead letters" + (" (graphweft dlq list)" if letters else ""))


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@command
async def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Rule files, workflow folders, folders of workflows, ontologies.", show_default="the folder of rules"
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say which rows of each mutation share a query.")] = False,
    server: Annotated[
        bool, typer.Option("--server", help="Also ask the graph server whether it takes each query; none is run.")
    ] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Check rules and ontologies; every finding comes with file:line:column. Exits with 1 when there are errors."""
    from graphweft_rules import lint as lint_rules
    from graphweft_rules.findings import ordered
    from graphweft_rules.lint import explain as explain_rules
    from graphweft_rules.lint import workflows
    from graphweft_rules.ontologies import apart, lint_ontologies

    rules, ontologies = apart(paths or [Settings.load().rules])
    findings = ordered([*lint_rules(rules), *lint_ontologies(ontologies)])
    parts = [part for workflow in workflows(rules) for part in workflow.parts if part.cypher is not None]
    if server:
        checked = await _asked_server(parts, Settings.load(data=data))
        findings = ordered([*findings, *checked.findings])
        count, asked = checked.count, "the graph server was asked about {} queries"
    else:
        count = len({(type(part), part.cypher) for part in parts})
        asked = "{} queries were not shown to a graph server, which may refuse them: `graphweft lint --server` asks it"
    explanations = explain_rules(rules) if explain else []
    if json:
        found = [finding.to_dict() for finding in findings]
        print_json({"mutations": [each.to_dict() for each in explanations], "findings": found} if explain else found)
        if count and not server:  # standard output is the document
            sys.stderr.write(asked.format(count) + "\n")
    else:
        say_aligned(
            (str(each.place), f"{each.rule}/{each.mutation}", each.dialect, each.mode, each.reason)
            for each in explanations
        )
        for finding in findings:
            say(str(finding))
        errors = sum(finding.level == "error" for finding in findings)
        if count or server:
            say(asked.format(count))
        say(f"{errors} errors, {len(findings) - errors} warnings")
    return 1 if any(finding.level == "error" for finding in findings) else None


async def _asked_server(parts: Sequence[CompiledMutation | CompiledInjection], settings: Settings) -> Checked:
    """Return what the graph server says of queries. Raises ``NotRunning`` when none answers."""
    from graphweft_workers.query_check import check_queries

    async with running_graph(settings) as graph:
        return await check_queries(graph, parts)


@command
async def doctor(
    data: Data = None,
    rules: Rules = None,
    role: Annotated[
        Process | None,
        typer.Option("--role", help="Look at nothing but the process of this role here: for health checks."),
    ] = None,
    max_age: Annotated[
        float, typer.Option("--max-age", min=0.1, help="--role: seconds after which a silent process hangs.")
    ] = heartbeat.MAX_AGE_S,
    json: Json = False,
) -> int | None:
    """Check settings, rules and services, and say what to do about what is wrong. Exits with 1 when a check fails.

    With --role it asks no server and reads no settings: it looks whether the process of that role on this machine, or
    in this container, is alive and its event loop turns.
    """
    if role is not None:
        return heartbeat.report(heartbeat.examine(role.value, max_age_s=max_age), as_json=json)
    from graphweft_workers.doctor import examine

    checks = await examine(Settings.load(data=data, rules=rules))
    if json:
        print_json([{"check": c.name, "state": c.state, "found": c.found, "advice": c.advice} for c in checks])
    else:
        for check in checks:
            console.print(f"{_MARKS[check.state]:>4} ", end="")
            say(f"{check.name}: {check.found}" + (f"\n     -> {check.advice}" if check.advice else ""))
    return 1 if any(check.state == "fail" for check in checks) else None
