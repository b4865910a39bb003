"""The payloads of dead letters: of the letters of one event, one keeps the event, and the others refer to the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts import DeadLetter, wire
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with

_MOST_LETTERS: Final = 1_000_000


class LetterPayloads:
    """Remembers which letters keep an event. After a restart another one may keep it too."""

    def __init__(self) -> None:
        self._kept_by: BoundedDict[str, str] = BoundedDict()
        """By position of the event: the letter that keeps it."""

    def once(self, letter: DeadLetter) -> DeadLetter:
        """Return a letter of one mutation of one event, without the event if another letter keeps it."""
        keeper = self._kept_by.get(letter.position)
        if keeper is None:
            self._kept_by[letter.position] = letter.id
        return letter if keeper in (None, letter.id) else letter.without_event()


async def payload_of(bus: Bus, letter: DeadLetter) -> Mapping[str, str]:
    """Return the (first) event of a letter as ``fields`` keeps it: from the letter, the log, or a letter beside it.

    It is empty if the event is nowhere any more. Raises ``BusUnavailable``.
    """
    if letter.fields:
        return letter.fields
    for entry in await bus.log.entries(letter.partition, [letter.offset]):
        if entry.fields:
            kept = {name: value for name, value in entry.fields.items() if name != wire.RETRY}
            return wire.pack({**kept, **wire.recording(entry.fields, entry.received)})
    # Without the events, which may be gigabytes: whoever looks at a letter in the console has it search here.
    for each in await bus.dead_letters.read(limit=_MOST_LETTERS, app_id=letter.app_id, whole=False):
        if each.position == letter.position and each.id != letter.id:
            beside = await letter_with(bus.dead_letters, each.id)
            if beside is not None and beside.fields:
                return beside.fields
    return {}
