"""``graphweft up`` and ``graphweft run``."""

from __future__ import annotations

import asyncio
import signal
from enum import StrEnum
from typing import Annotated

import typer

from graphweft_workers import services
from graphweft_workers.cli.options import Data, Rules, command
from graphweft_workers.cli.output import say
from graphweft_workers.settings import Settings

__all__ = ("Role", "run", "up")


class Role(StrEnum):
    """What one process does in a deployment of several."""

    MUTATION = "mutation"
    INJECTION = "injection"


@command
async def up(data: Data = None, rules: Rules = None) -> None:
    """Run everything on this machine: bus, graph, mutation worker and injection responder. Ctrl-C stops it."""
    from graphweft_workers.logs import set_up_logs
    from graphweft_workers.supervisor import Supervisor

    settings = Settings.load(data=data, rules=rules)
    set_up_logs(settings.log_level, settings.log_format)
    supervisor = Supervisor(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop)

    def ready() -> None:
        say(f"graphweft is up on {settings.data} with the rules of {settings.rules}; Ctrl-C stops it")

    await supervisor.run(ready)


@command
async def run(
    role: Annotated[Role, typer.Argument(help="The role of this process.")], rules: Rules = None, data: Data = None
) -> None:
    """Run one role against the servers that GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL name, until SIGTERM."""
    from graphweft_workers.logs import set_up_logs

    settings = Settings.load(rules=rules, data=data)
    set_up_logs(settings.log_level, settings.log_format)
    if role is Role.MUTATION:
        await services.run_mutation(settings)
    else:
        await services.run_injection(settings)
