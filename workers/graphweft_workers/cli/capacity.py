"""``graphweft capacity``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphweft_workers.cli.options import Json, command, number
from graphweft_workers.cli.output import print_error, show, warn
from graphweft_workers.imports.event_lines import LineFaults, events_of_file
from graphweft_workers.reports.capacity import Capacity, Demand, Figures
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import load_given_rules, load_rules

_DEFAULT_RULES = 10


@command
async def capacity(
    apps: Annotated[int, typer.Option("--apps", parser=number(1, 20_000, whole=True), help="Number of apps.")],
    events: Annotated[float, typer.Option("--events", parser=number(0.001, 1e7), help="Events a second, all apps.")],
    requests: Annotated[
        float, typer.Option("--requests", parser=number(0, 1e7), help="Context requests a second, all apps.")
    ] = 0.0,
    skew: Annotated[
        float,
        typer.Option(
            "--skew", parser=number(0, 2), help="How unequal apps are: the n-th largest has n^-SKEW of the largest."
        ),
    ] = 0.5,
    measure: Annotated[
        Path | None,
        typer.Option(
            "--measure", metavar="FILE", help="First measure this machine: apply the events of a file by the rules."
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            help="Folder of workflows, for the number of rules.",
            envvar="GRAPHWEFT_RULES",
            show_default="10 rules; with --measure, workflows",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say how many processes, partitions and servers a load needs, and which figure limits.

    The table says which figures are measured, for the page on benchmarks, and which are estimates. With --measure, a
    worker applies copies of the events of a file on an embedded server of its own for some seconds, by the rules of the
    folder, and its figures count.
    """
    settings = Settings.load(rules=rules)
    count = _DEFAULT_RULES
    if rules is not None:
        count = len(load_given_rules(settings, settings.rules).mutations)
    elif measure is not None:  # which may be events of memory alone, without rules
        count = len(load_rules(settings).mutations)
    demand = Demand(apps=apps, events=events, requests=requests, rules=count, skew=skew)
    figures, compared = Figures(), []
    if measure is not None:
        from graphweft_workers.processes.event_cost import event_cost

        cost = await event_cost(settings, [*events_of_file(str(measure), LineFaults(print_error, warn))])
        figures, compared = figures.measured(cost, count), figures.compared(cost, count)
    show(Capacity(demand, figures, compared), json=json)
