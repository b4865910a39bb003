"""Events that an operator tells the workers not to apply; one dead letter per partition lists them."""

from __future__ import annotations

from functools import cmp_to_key

from graphweft_contracts import DeadLetter, InvalidEvent, InvalidSettings, wire
from graphweft_workers.engine.read import letter_for
from graphweft_workers.ports.bus import Bus

_MESSAGE = "an operator set these events aside; retry this dead letter when the cause is fixed"


def set_aside_id(partition: int) -> str:
    """Return the id of the dead letter that lists the events of a partition that are set aside."""
    return f"{partition}:set-aside"


async def set_aside(bus: Bus, position: str) -> DeadLetter:
    """Set aside the event at ``partition:offset``: workers ignore it from the next time they open the partition.

    Return the dead letter that lists the partition's events. Raises ``InvalidSettings`` if the bus holds no such event
    or the event has taken effect, and ``BusUnavailable``.
    """
    name, _, offset = position.partition(":")
    if not name.isdigit() or not offset or int(name) >= await bus.partitions():
        raise InvalidSettings(f"invalid position {position!r}: expected PARTITION:OFFSET; see `graphweft status`")
    partition = int(name)
    found = await bus.entries(partition, [offset])
    if not found:
        raise InvalidSettings(f"the bus holds no event at {position!r}; `graphweft status` shows positions")
    status = next((status for status in await bus.status() if status.id == partition), None)
    if status is not None and not bus.is_after(offset, status.position):
        raise InvalidSettings(f"the event at {position!r} has already taken effect or has another dead letter")

    def order(one: str, other: str) -> int:
        return bus.is_after(one, other) - bus.is_after(other, one)

    while True:
        letter = await bus.dead_letter(set_aside_id(partition))
        if letter is None:
            try:
                event = wire.decode(found[0].fields, received=found[0].received)
            except InvalidEvent:
                event = None
            first = letter_for(partition, found[0], "set_aside", _MESSAGE, event=event)
            letter = first.model_copy(update={"id": set_aside_id(partition)}).of_entries((offset,))
            if await bus.extend(None, letter):
                return letter
            continue
        if offset in letter.offsets:
            return letter
        ordered = sorted({*letter.offsets, offset}, key=cmp_to_key(order))
        longer = letter.of_entries(tuple(ordered))
        if await bus.extend(letter, longer):
            return longer
