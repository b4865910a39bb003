"""``--as-of``: an app's graph as it was, for the time of a command."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Final

from graphweft_contracts.plurals import counted
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import past_time
from graphweft_workers.cli.output import stderr, warn
from graphweft_workers.cli.replay_progress import replay_progress
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_app_log

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.replay.replay import ReplayStep
    from graphweft_workers.wiring.past_graph import PastGraph

OPTION: Final = "--as-of"


@asynccontextmanager
async def past_graph(settings: Settings, app: str, as_of: str, into: str | None) -> AsyncGenerator[PastGraph]:
    """Yield the graph of ``app`` as of a time or position. It is deleted afterwards, also after Ctrl-C.

    Raises ``InvalidSettings`` if the log lacks its beginning, or there is no place for a second graph.
    """
    when = past_time(as_of, OPTION)
    set_up_command_logs(settings)
    async with running_app_log(settings, app) as log, AsyncExitStack() as stack:
        from graphweft_workers.wiring.past_graph import replay_past

        with replay_progress(app) as (tell, _):
            found = await stack.enter_async_context(replay_past(settings, log, when, into=into, tell=tell, warn=warn))
        if found.gaps:
            from graphweft_workers.archive.log_gaps import without

            warn(without(found.gaps))
        _warn(found.done)
        _say(found)
        yield found


def _warn(done: Mapping[int, ReplayStep]) -> None:
    from graphweft_workers.replay.replay import failed_letters

    for letter in failed_letters(done.values()):
        warn(f"failed, and has not failed then: {letter.rule}/{letter.mutation} at {letter.offset}: {letter.message}")
    skips = sum(each.skips.total() for each in done.values())
    if skips:
        warn(f"{counted(skips, 'mutation was', 'mutations were')} skipped, but not then")


def _say(past: PastGraph) -> None:
    moment = past.time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    places = ", ".join(past.positions) or "before the first entry"
    came = f", {past.restored:,} of them from a snapshot" if past.restored else ""
    text = f"as of {moment}, {places}, {counted(past.events, 'event')}{came}"
    stderr().print(text, style="dim", markup=False, soft_wrap=True)
