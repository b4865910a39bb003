"""The page *Dead letters*: list and show them; retry, correct and drop them where that is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from graphweft_contracts import DeadLetter, DeadLetterReason, Event
from graphweft_rules import RuleSet
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.engine.failures import corrections
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.ports.dead_letters import letter_count, letter_with
from graphweft_workers.reports.dead_letters import LetterWithEvent, drop_letters, retry_letters
from graphweft_workers.reports.judging import judge_event
from graphweft_workers.reports.values import shown

READ: Final = 2_000
"""Dead letters that are read, the oldest."""
_SIZE: Final = 32 * 1024**2
"""Bytes of these dead letters, which hold events."""
MOST: Final = 100
"""Dead letters of one answer, and of one retry."""

type LetterId = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class LettersQuestion(AppQuestion):
    """Asks for dead letters, the oldest first."""

    reason: DeadLetterReason | None = None
    skip: int = Field(default=0, ge=0, le=READ)
    limit: int = Field(default=50, ge=1, le=MOST)


class LetterQuestion(AppQuestion):
    """Asks for one dead letter with its event."""

    id: LetterId


class LetterActionQuestion(AppQuestion):
    """Asks to retry or drop dead letters."""

    ids: list[LetterId] = Field(min_length=1, max_length=MOST)


class LetterCorrectionQuestion(LetterQuestion):
    """Asks to put an event with changed data in the place of the one of a dead letter."""

    changes: dict[str, Any] = Field(min_length=1, max_length=100)
    """A JSON merge patch of the event's data: null removes a value."""


async def letters(sources: Sources, viewer: Viewer, question: LettersQuestion) -> dict[str, Any]:
    """Return dead letters of an app, or of all apps; without their events."""
    app_id = viewer.apps(question.app)
    found = await sources.bus.dead_letters.read(limit=READ, app_id=app_id, size=_SIZE)
    seen = [each for each in found if viewer.sees(each)]
    mine = [each for each in seen if question.reason in (None, each.reason)]
    return {
        "letters": [_letter(each, redacts=sources.redacts) for each in mine[question.skip :][: question.limit]],
        "total": len(mine),
        "hidden": len(found) - len(seen),
        "partly": len(found) < await letter_count(sources.bus.dead_letters, app_id),
        "read": len(found),
        "reasons": sorted({each.reason for each in seen}),
    }


async def letter(sources: Sources, viewer: Viewer, question: LetterQuestion) -> dict[str, Any]:
    """Return one dead letter with its first event."""
    [found] = await _letters_with(sources, viewer, question.app, [question.id])
    whole = await LetterWithEvent.read(sources.bus, found)
    return _letter(found, redacts=sources.redacts) | {
        "fields": shown(whole.fields, redacts=sources.redacts, text=20_000),
        "not_corrected": corrections.refusal_of(sources.bus, found, whole.payload),
    }


async def retry(sources: Sources, viewer: Viewer, question: LetterActionQuestion) -> dict[str, Any]:
    """Put the events of dead letters back on the bus; only the mutation that failed runs again."""
    return (await retry_letters(sources.bus, await _changeable(sources, viewer, question))).to_dict()


async def drop(sources: Sources, viewer: Viewer, question: LetterActionQuestion) -> dict[str, Any]:
    """Delete dead letters: what they stand for never takes effect."""
    # Who sees one app only must not accept what others have lost.
    by = f"the token {viewer.token.name}" if viewer.all_apps else None
    return (await drop_letters(sources.bus, await _changeable(sources, viewer, question), by=by)).to_dict()


async def correct_letter(sources: Sources, viewer: Viewer, question: LetterCorrectionQuestion) -> dict[str, Any]:
    """Publish an event with changed data for the mutation of a dead letter, and drop the letter, in one step.

    Raises ``Problem`` for an event that is not valid, or for which the mutation would not run; then nothing changes.
    """
    viewer.require_write()
    [found] = await _letters_with(sources, viewer, question.app, [question.id])
    if fault := corrections.refusal_of(sources.bus, found):
        raise Problem(422, "refused", fault)
    before, recorded = await corrections.event_of(sources.bus, found)
    event = corrections.corrected(before, question.changes)
    rules = await sources.active_rules((await sources.decoder()).activations, event.appid)
    if fault := await asyncio.to_thread(_unmatched, rules, event, found):
        raise Problem(422, "refused", fault)
    if not await corrections.publish(sources.bus, found, event, recorded):
        raise Problem(409, "changed", "the dead letter has changed meanwhile: load the list again")
    return {"id": event.id}


def _unmatched(rules: RuleSet, event: Event, letter: DeadLetter) -> str:
    """Return why the mutation of a letter would not run for an event; "" if it would."""
    if rules.is_packed(letter.rule or "", letter.mutation or ""):
        return "the mutation is built in: emit a corrected event with a new id, and drop this letter"
    judged = judge_event(rules, event)
    names = [(each.mutation.rule, each.mutation.id) for each in judged.mutations]
    if (letter.rule, letter.mutation) in names:
        return ""
    why = next(
        (each.reason for each in judged.skipped if (each.rule, each.mutation) == (letter.rule, letter.mutation)), ""
    )
    why = why or next((each.reason for each in judged.unmatched if each.rule == letter.rule), "") or judged.reason
    return (
        f"with this data the mutation would not run, so nothing was changed: {why or 'the rules have no such mutation'}"
    )


async def _changeable(sources: Sources, viewer: Viewer, question: LetterActionQuestion) -> list[str]:
    """Return the ids of letters. Raises ``Problem`` unless the viewer may write, and all are of its app alone."""
    viewer.require_write()
    found = await _letters_with(sources, viewer, question.app, question.ids)
    if not viewer.all_apps and any(each.reason == "set_aside" for each in found):
        raise Problem(
            403,
            "other-app",
            "a dead letter of events that were set aside may hold those of other apps: an operator can change it",
        )
    return [each.id for each in found]


async def _letters_with(sources: Sources, viewer: Viewer, app: str | None, ids: Sequence[str]) -> list[DeadLetter]:
    """Return the letters with ids. Raises ``Problem`` if one does not exist, in the same words for another app's."""
    app_id = viewer.apps(app)
    found: list[DeadLetter] = []
    for each in dict.fromkeys(ids):
        known = await letter_with(sources.bus.dead_letters, each)
        if known is None or not _is_visible(known, app_id):
            raise Problem(404, "no-letter", "a dead letter of this app does not exist any more: load the list again")
        if not viewer.sees(known):
            raise Problem(403, "other-workflow", "the token may not see the rules of the workflow of this dead letter")
        found.append(known)
    return found


def _is_visible(each: DeadLetter, app_id: str | None) -> bool:
    """Tell whether a letter is of an app; letters of no app are for operators who look at all apps."""
    return app_id is None or each.app_id == app_id


def _letter(each: DeadLetter, *, redacts: bool) -> dict[str, Any]:
    content = each.model_dump(mode="json", exclude={"fields", "offsets"}, exclude_none=True)
    return shown(content, redacts=redacts) | {"id": each.id}  # type: ignore[no-any-return]
