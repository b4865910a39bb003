"""``graphweft bus mend``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from graphweft_contracts import InvalidSettings
from graphweft_workers.cli.options import Data, command
from graphweft_workers.cli.output import say
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import mending
from graphweft_workers.wiring.running import check_bus

_REQUESTS: Final = "requests"
_ALL: Final = "all"


@command
async def bus_mend(
    what: Annotated[
        str, typer.Argument(help="The number of a partition, 'all' partitions, or 'requests'.", metavar="PARTITION")
    ],
    data: Data = None,
) -> None:
    """Mend a partition that takes no events, or whose end the bus lost, or the queue of context requests.

    No event is lost that the bus or the archive holds.
    """
    if what not in (_REQUESTS, _ALL) and not (what.isascii() and what.isdecimal()):
        raise InvalidSettings(f"invalid partition {what!r}: expected a number, {_ALL!r}, or {_REQUESTS!r}")
    settings = Settings.load(data=data)
    await check_bus(settings)
    done: list[str] = []
    if what == _REQUESTS:
        if mended := await mending.mended_requests(settings):
            done.append(mended)
            say(mended)
    else:
        async for line in mending.mended(settings, None if what == _ALL else int(what)):
            done.append(line)
            say(line)
    if not done:
        say("there is nothing to mend; `graphweft doctor` says what else is wrong")
