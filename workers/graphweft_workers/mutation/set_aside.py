"""Events that an operator told the workers to pass over: one dead letter a partition lists them."""

from __future__ import annotations

from functools import cmp_to_key

from graphweft_contracts import DeadLetter, InvalidEvent, InvalidSettings, wire
from graphweft_workers.bus.log import Bus
from graphweft_workers.mutation.reading import letter_for

_MESSAGE = "an operator told the workers to pass over these events; retry this letter when the cause is gone"


def set_aside_id(partition: int) -> str:
    """Return the id of the letter that lists the events of a partition which workers pass over."""
    return f"{partition}:set-aside"


async def set_aside(bus: Bus, position: str) -> DeadLetter:
    """Let workers pass over the event at ``partition:offset`` from the next time on that they open the partition.

    Return the letter that lists the partition's events. Raises ``InvalidSettings`` where no such event is on the bus,
    and ``BusUnavailable``.
    """
    name, _, offset = position.partition(":")
    if not name.isdigit() or not offset or int(name) >= await bus.partitions():
        raise InvalidSettings(f"{position!r} is not PARTITION:OFFSET of an event; `graphweft status` shows positions")
    partition = int(name)
    found = await bus.entries(partition, [offset])
    if not found:
        raise InvalidSettings(f"there is no event at {position!r} on the bus; `graphweft status` shows positions")
    status = next((status for status in await bus.status() if status.id == partition), None)
    if status is not None and not bus.is_after(offset, status.position):
        raise InvalidSettings(f"the event at {position!r} took effect already, or has another dead letter")

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
