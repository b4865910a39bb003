"""``graphweft bus mend``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from graphweft_contracts import InvalidSettings
from graphweft_workers.cli.options import Data, command
from graphweft_workers.cli.output import say
from graphweft_workers.roles import connections
from graphweft_workers.roles.running import running_bus
from graphweft_workers.roles.settings import Settings

_REQUESTS: Final = "requests"


@command
async def bus_mend(
    what: Annotated[str, typer.Argument(help="The number of a partition, or 'requests'.", metavar="PARTITION")],
    data: Data = None,
) -> None:
    """Mend a partition that takes no events, or the queue of context requests. No event is lost."""
    if what != _REQUESTS and not (what.isascii() and what.isdecimal()):
        raise InvalidSettings(f"invalid partition {what!r}: expected a number, or {_REQUESTS!r}")
    settings = Settings.load(data=data)
    async with running_bus(settings):
        pass
    done = await connections.mend(settings, None if what == _REQUESTS else int(what))
    say(done or "there is nothing to mend; `graphweft doctor` says what else is wrong")
