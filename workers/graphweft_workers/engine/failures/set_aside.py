"""Events that an operator tells the workers not to apply; one dead letter per partition lists them.

A worker reads the letter when it opens the partition, so it may still apply an event that is set aside later. The
letter therefore says which of its events a worker has heeded, before it passes over them: only these have no effect for
sure.
"""

from __future__ import annotations

from graphweft_contracts import DeadLetter, GraphUnavailable, InvalidEvent, InvalidSettings, QueryFailed, wire
from graphweft_workers.engine.log.history import in_order
from graphweft_workers.engine.log.read import letter_for
from graphweft_workers.engine.plan.graph_marks import has_plan
from graphweft_workers.engine.plan.plan import begun_events
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.mutation")

_MESSAGE = "an operator set these events aside; retry this dead letter when the cause is fixed"


def set_aside_id(partition: int) -> str:
    """Return the id of the dead letter that lists the events of a partition that are set aside."""
    return f"{partition}:set-aside"


async def set_aside(bus: Bus, position: str) -> DeadLetter:
    """Set aside the event at ``partition:offset``: workers ignore it from the next time they open the partition.

    Return the dead letter that lists the partition's events. Raises ``InvalidSettings`` if the bus holds no such event
    or the event has taken effect, and ``BusUnavailable``. A worker that runs meanwhile may apply the event all the
    same; then the letter does not heed it, and ``retry`` does not repeat it.
    """
    name, _, offset = position.partition(":")
    if not name.isdigit() or not offset or int(name) >= await bus.partitions.count():
        raise InvalidSettings(f"invalid position {position!r}: expected PARTITION:OFFSET; see `graphweft status`")
    partition = int(name)
    found = await bus.log.entries(partition, [offset])
    if not found:
        raise InvalidSettings(f"the bus holds no event at {position!r}; `graphweft status` shows positions")
    status = next((status for status in await bus.partitions.status() if status.id == partition), None)
    if status is not None and not is_after(offset, status.position):
        raise InvalidSettings(f"the event at {position!r} has already taken effect or has another dead letter")
    while True:
        letter = await letter_with(bus.dead_letters, set_aside_id(partition))
        if letter is None:
            try:
                event = wire.decode(found[0].fields, received=found[0].received)
            except InvalidEvent:
                event = None
            first = letter_for(partition, found[0], "set_aside", _MESSAGE, event=event)
            letter = first.model_copy(update={"id": set_aside_id(partition)}).of_entries((offset,))
            letter = letter.model_copy(update={"heeded": ()})
            if await bus.dead_letters.extend(None, letter):
                return letter
            continue
        if offset in letter.offsets:
            return letter
        longer = letter.of_entries(in_order({*letter.offsets, offset}))
        if await bus.dead_letters.extend(letter, longer):
            return longer


async def counted_letter(
    bus: Bus, graph: GraphStore, partition: int, position: str, *, timeout_s: float = TIMING.checkpoints_s
) -> DeadLetter | None:
    """Return the letter of a partition that is set aside, with all events heeded that can be; None without one.

    Call it when no worker applies events of the partition, with the committed position. An event that a graph holds, or
    has begun to take, stays as it is. Raises ``BusUnavailable``.
    """
    while (letter := await letter_with(bus.dead_letters, set_aside_id(partition))) is not None:
        if letter.heeded is None:
            return letter
        ahead = [each for each in letter.offsets if each not in letter.heeded and is_after(each, position)]
        entries = await bus.log.entries(partition, ahead) if ahead else ()
        fresh = [
            entry.offset for entry in entries if not await _may_have_effect(bus, graph, partition, entry, timeout_s)
        ]
        if not fresh:
            return letter
        heeding = letter.model_copy(update={"heeded": in_order({*letter.heeded, *fresh})})
        if await bus.dead_letters.extend(letter, heeding):
            return heeding
    return None


async def _may_have_effect(bus: Bus, graph: GraphStore, partition: int, entry: Entry, timeout_s: float) -> bool:
    """Tell whether a graph holds an event or a part of it, or cannot say so now."""
    try:
        app_id = wire.decode(entry.fields, received=entry.received).appid
    except Exception:  # noqa: BLE001 - whatever an entry holds, no graph has taken it
        return False
    try:
        checkpoint = (await graph.checkpoints(app_id, timeout_s=timeout_s)).get(partition)
        if checkpoint is None:
            return False
        if not is_after(entry.offset, checkpoint.offset):
            return True
        return has_plan(checkpoint) and entry.offset in begun_events(await graph.progress(app_id, partition))
    except QueryFailed:
        return False  # the app has no graph
    except GraphUnavailable as error:
        logger.warning(
            "set_aside_unheeded", partition=partition, offset=entry.offset, app_id=app_id,
            message=f"the event is not passed over, since it may be in the graph: {error}", next="restart the worker",
        )  # fmt: skip
        return True
