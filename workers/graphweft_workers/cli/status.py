"""``graphweft status``."""

from __future__ import annotations

from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import show
from graphweft_workers.reports.status import StatusReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus
from graphweft_workers.wiring.status import read_status


@command
async def status(data: Data = None, json: Json = False) -> None:
    """Show the position and the lag of every partition, apps that are behind, the use and quotas of
    apps, the archive, and what had no effect."""
    settings = Settings.load(data=data)
    async with running_bus(settings) as bus:
        found = await read_status(settings, bus)
    show(StatusReport(status=found), json=json)
