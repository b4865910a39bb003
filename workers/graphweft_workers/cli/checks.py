"""``graphweft lint`` and ``doctor``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import Data, Json, Rules, command, number, words
from graphweft_workers.cli.output import aligned, print_json, say, show, stdout
from graphweft_workers.processes import heartbeat
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rights import RightsRole

_MARKS: Final = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[bold red]fail[/]"}
Order = Literal["app", "chat"]
Process = Literal["mutation", "worker", "injection", "responder", "memory", "archive", "gateway", "console", "any"]


@command
async def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Rule files, rule tests, workflow folders, folders of workflows, ontologies.",
            show_default="the folder of rules",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show which rows of each mutation share a query.")
    ] = False,
    server: Annotated[
        bool,
        typer.Option("--server", help="Also ask the graph server whether it accepts each query. No query is run."),
    ] = False,
    order: Annotated[
        Order,
        typer.Option(
            "--order",
            **words(*get_args(Order)),
            help="chat: also report mutations whose effect depends on the order of chats.",
        ),
    ] = "app",
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Check rules, their tests and ontologies. Each finding has file:line:column. Exits with 1 if there are errors."""
    from graphweft_rules import lint as lint_rules
    from graphweft_rules.files.findings import ordered
    from graphweft_rules.files.lint import explain as explain_rules
    from graphweft_rules.files.lint import workflows
    from graphweft_rules.files.loader import TESTS
    from graphweft_rules.matching.chat_order import order_across_chats
    from graphweft_rules.rule_tests.folder import load_tests
    from graphweft_workers.wiring.connections import dialects
    from graphweft_workers.wiring.ontologies import apart, lint_ontologies
    from graphweft_workers.wiring.rules import known_labels

    others, ontologies = apart(paths or [Settings.load().rules])
    rules = [path for path in others if path.is_dir() or not path.name.endswith(TESTS)]
    of_tests = [
        finding
        for path in others
        if path.is_dir() or path.name.endswith(TESTS)
        for finding in load_tests(path).findings
    ]
    findings = ordered([*lint_rules(rules, dialects(), known_labels()), *lint_ontologies(ontologies), *of_tests])
    compiled = workflows(rules)
    if order == "chat":
        findings = ordered([*findings, *order_across_chats(compiled)])
    parts = [part for workflow in compiled for part in workflow.parts if part.cypher is not None]
    if server:
        from graphweft_workers.wiring.query_check import check_queries
        from graphweft_workers.wiring.running import running_graph

        async with running_graph(Settings.load(data=data)) as graph:
            checked = await check_queries(graph, parts)
        findings = ordered([*findings, *checked.findings])
        count, note = checked.count, f"a graph server checked {counted(checked.count, 'query')}"
    else:
        count = len({(type(part), part.cypher) for part in parts})
        note = (
            f"{counted(count, 'query was', 'queries were')} not checked by a graph server: run "
            f"`graphweft lint --server` to check {'it' if count == 1 else 'them'}"
        )
    explanations = explain_rules(rules, dialects()) if explain else []
    errors = sum(finding.level == "error" for finding in findings)
    found = [finding.to_dict() for finding in findings]
    explained = aligned(
        (str(each.place), f"{each.rule}/{each.mutation}", each.dialect, each.mode, each.reason) for each in explanations
    )
    said = [*explained, *map(str, findings), *([note] if count or server else [])]
    said.append(f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    mutations = [each.to_dict() for each in explanations]
    show(PlainReport({"mutations": mutations, "findings": found} if explain else found, said), json=json)
    if json and count and not server:  # standard output holds the document only
        sys.stderr.write(note + "\n")
    return 1 if errors else None


@command
async def doctor(
    data: Data = None,
    rules: Rules = None,
    role: Annotated[
        Process | None,
        typer.Option(
            "--role",
            **words(*get_args(Process)),
            help="For health checks: look only at the process of this role on this machine.",
        ),
    ] = None,
    max_age: Annotated[
        float,
        typer.Option(
            "--max-age",
            parser=number(0.1),
            metavar="SECONDS",
            help="--role: seconds without a heartbeat until a process counts as hung.",
        ),
    ] = heartbeat.MAX_AGE_S,
    rights: Annotated[
        RightsRole | None,
        typer.Option(
            "--rights",
            **words(*get_args(RightsRole.__value__)),
            help="Try the rights of this role on the bus.",
            show_default="worker with a user",
        ),
    ] = None,
    app: Annotated[str | None, typer.Option("--app", help="--rights tenant: the app.")] = None,
    json: Json = False,
) -> int | None:
    """Check settings, rules and servers, and say how to fix each problem. Exits with 1 when a check fails.

    With --role it contacts no server and reads no settings: it checks that the process of that role, on this machine
    or in this container, is alive and its event loop turns.
    """
    if role is not None:
        return heartbeat.report(heartbeat.examine(role, max_age_s=max_age), as_json=json)
    from graphweft_workers.doctor import examine

    if (rights == "tenant") != (app is not None):
        raise InvalidSettings("--app names the app of a tenant: give it with --rights tenant, and only with it")
    checks = await examine(Settings.load(data=data, rules=rules), rights=rights, app_id=app)
    if json:
        print_json([{"check": c.name, "state": c.state, "found": c.found, "advice": c.advice} for c in checks])
    else:
        for check in checks:
            stdout().print(f"{_MARKS[check.state]:>4} ", end="")
            say(f"{check.name}: {check.found}" + (f"\n     -> {check.advice}" if check.advice else ""))
    return 1 if any(check.state == "fail" for check in checks) else None
