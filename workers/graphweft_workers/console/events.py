"""One event and what became of it, as ``graphweft events why`` explains it."""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion, Position
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.reports.effects import letters_of
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.event import fate_of
from graphweft_workers.reports.judging import Judgement
from graphweft_workers.reports.lookup import at_position
from graphweft_workers.reports.reasons import Reasons, explain
from graphweft_workers.reports.scan import ScanLimits, ends
from graphweft_workers.reports.values import shown
from graphweft_workers.wiring.rules import rules_maker

_SEARCHED: Final = 2_000
"""Entries after an event in which its copies and retries are looked for."""
_SIZE: Final = 16 * 1024**2
"""Bytes of these entries, and of those before it."""
_TEXT: Final = 4_000
_OURS: Final = frozenset({"rules", "state", "committed", "checkpoint", "plan", "parked", "copy_of", "copies", "again"})
"""Fields without data of events. A digest of rules would look like a secret."""


class EventQuestion(AppQuestion):
    """Asks for the entry at a position."""

    position: Position


async def find(sources: Sources, viewer: Viewer, question: EventQuestion) -> DecodedEntry:
    """Return the entry. Raises ``Problem`` if there is none, and in the same words if it is another app's."""
    app_id = viewer.apps(question.app)
    decoder = await sources.decoder()
    seen = await at_position(sources.bus, decoder, question.position, await ends(sources.bus))
    if seen is None or (app_id is not None and seen.app_id != app_id):
        raise Problem(404, "no-event", "there is no event of this app at this position; the bus may have trimmed it")
    return seen


async def event(sources: Sources, viewer: Viewer, question: EventQuestion) -> dict[str, Any]:
    """Return an entry, its effect, and why it has it: the rules of its place, which match, and which do not."""
    seen, app_id = await find(sources, viewer, question), viewer.apps(question.app)
    bus, decoder = sources.bus, await sources.decoder()
    fate = await fate_of(bus, decoder, sources.graph, seen, ScanLimits(entries=_SEARCHED, size=_SIZE))
    try:
        reasons = await explain(bus, decoder, fate, make=rules_maker(sources.settings))
    except InvalidSettings as error:  # its rules are lost: the rest is known
        letters = await letters_of(bus, seen, ())
        judged = Judgement(reason=str(error))
        reasons = Reasons(fate=fate, activation=None, ahead=False, judged=judged, outcomes=(), letters=letters)
    # A letter of events that were set aside is of the app of its first event.
    visible = [each for each in reasons.letters.found if app_id in (None, each.app_id) and viewer.sees(each)]
    found = fate.to_dict(visible) | reasons.rules_dict()
    workflow = None if seen.event is None else seen.event.workflow
    if seen.event is not None and workflow is not None and not viewer.uses(seen.event.appid, workflow):
        found |= {"mutations": [], "skipped": [], "failed": [], "unmatched": [], "reason": "", "rules": None}
    content = None if seen.event is None else seen.event.model_dump(mode="json", exclude_none=True)
    return {
        "position": seen.position,
        "received": seen.entry.received.isoformat(),
        "kind": seen.kind,
        "event": shown(content, redacts=sources.redacts, text=_TEXT),
        **{
            name: shown(value, redacts=sources.redacts and name not in _OURS, text=_TEXT)
            for name, value in found.items()
        },
    }
