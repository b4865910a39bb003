"""``graphweft status``, ``lint`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphweft_workers.cli.options import Data, Json, Rules, command
from graphweft_workers.cli.output import console, print_json, print_table, say, say_aligned
from graphweft_workers.cli.running import running_bus
from graphweft_workers.doctor import examine
from graphweft_workers.settings import Settings

__all__ = ("doctor", "lint", "status")

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[bold red]fail[/]"}


@command
async def status(data: Data = None, json: Json = False) -> None:
    """Show where every partition stands, and how many dead letters there are."""
    async with running_bus(Settings.load(data=data)) as bus:
        partitions, letters = await bus.status(), await bus.dead_letter_count()
    if json:
        rows = [{"id": p.id, "position": p.position, "end": p.end, "lag": p.lag, "owner": p.owner} for p in partitions]
        print_json({"partitions": rows, "lag": sum(p.lag for p in partitions), "dead_letters": letters})
        return
    print_table(
        ("partition", "position", "end", "lag", "worker"),
        [(str(p.id), p.position, p.end, p.lag, p.owner or "none") for p in partitions],
    )
    say(f"{letters} dead letters" + (" (graphweft dlq list)" if letters else ""))


@command
async def lint(
    paths: Annotated[
        list[Path], typer.Argument(help="Rule files, workflow folders, folders of workflows, ontologies.")
    ],
    explain: Annotated[bool, typer.Option("--explain", help="Say which rows of each mutation share a query.")] = False,
    json: Json = False,
) -> int | None:
    """Check rules and ontologies; every finding comes with file:line:column. Exits with 1 when there are errors."""
    from graphweft_rules import lint as lint_rules
    from graphweft_rules.findings import ordered
    from graphweft_rules.lint import explain as explain_rules
    from graphweft_rules.ontologies import apart, lint_ontologies

    rules, ontologies = apart(paths)
    findings = ordered([*lint_rules(rules), *lint_ontologies(ontologies)])
    explanations = explain_rules(rules) if explain else []
    if json:
        found = [finding.to_dict() for finding in findings]
        print_json({"mutations": [each.to_dict() for each in explanations], "findings": found} if explain else found)
    else:
        say_aligned(
            (str(each.place), f"{each.rule}/{each.mutation}", each.dialect, each.mode, each.reason)
            for each in explanations
        )
        for finding in findings:
            say(str(finding))
        errors = sum(finding.level == "error" for finding in findings)
        say(f"{errors} errors, {len(findings) - errors} warnings")
    return 1 if any(finding.level == "error" for finding in findings) else None


@command
async def doctor(data: Data = None, rules: Rules = None, json: Json = False) -> int | None:
    """Check settings, rules and services, and say what to do about what is wrong."""
    checks = await examine(Settings.load(data=data, rules=rules))
    if json:
        print_json([{"check": c.name, "state": c.state, "found": c.found, "advice": c.advice} for c in checks])
    else:
        for check in checks:
            console.print(f"{_MARKS[check.state]:>4} ", end="")
            say(f"{check.name}: {check.found}" + (f"\n     -> {check.advice}" if check.advice else ""))
    return 1 if any(check.state == "fail" for check in checks) else None
