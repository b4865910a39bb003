"""Conversations with questions and the turns that answer them, in the format of LoCoMo's ``locomo10.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from graphweft_contracts import Event
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_rules.files.model import Place
from graphweft_workers.evaluation import questions as evaluation

SOURCE: Final = "/graphweft/locomo"
_TURN_ID: Final = re.compile(r"D:?(\d+):(\d+)")
"""In a question's evidence; some of LoCoMo's items name several turns, or one as ``D30:05``."""
_WHEN: Final = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocomoTurn:
    """What somebody said."""

    id: str
    """``D3:7``: the seventh turn of the third session."""
    session: int
    time: datetime
    """The session's, and a second for each turn before it."""
    speaker: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocomoQuestion:
    """A question about a conversation."""

    text: str
    category: int
    evidence: frozenset[str]
    """Ids of the turns that answer it; only those that are in the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """All sessions of two people."""

    id: str
    first: str
    """Who is ``speaker_a``."""
    turns: tuple[LocomoTurn, ...]
    questions: tuple[LocomoQuestion, ...]
    """Those that have evidence."""
    asked: int
    """How many questions there were, those without evidence included."""


def read(file: Path) -> list[Conversation]:
    """Return the conversations of a file. Raises ``ValueError`` that says what is not as the format wants it."""
    try:
        samples: Any = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not in the format of locomo10.json: it is no JSON ({error})") from error
    wanted = "a list of conversations, each with sample_id, conversation and qa"
    if not isinstance(samples, list):
        raise ValueError(f"{file} is not in the format of locomo10.json: it must be {wanted}")
    listed: list[Any] = samples  # pyright: ignore[reportUnknownVariableType]
    found: list[Conversation] = []
    for number, sample in enumerate(listed, 1):
        try:
            found.append(_conversation(sample))
        except KeyError as error:
            message = f"{file} is not in the format of locomo10.json: conversation {number} has no {error.args[0]!s}"
            raise ValueError(message) from error
        except (TypeError, AttributeError, ValueError) as error:
            message = f"{file} is not in the format of locomo10.json: conversation {number} is not as in {wanted}"
            raise ValueError(message) from error
    return found


def memories_of(conversation: Conversation, app_id: str) -> Iterator[tuple[Event, Mapping[str, str]]]:
    """Yield the ``memory.add`` event of each session, with the id of each memory that it makes and the turn's."""
    for number in dict.fromkeys(turn.session for turn in conversation.turns):
        turns = [turn for turn in conversation.turns if turn.session == number]
        event = Event.create(
            "memory.add",
            app_id=app_id,
            chat_id=conversation.id,
            data={
                "user_id": conversation.id,
                "thread_id": conversation.id,
                "messages": [
                    {
                        "role": "user" if turn.speaker == conversation.first else "assistant",
                        "text": turn.text,
                        "time": turn.time.isoformat(),
                        "message_id": turn.id,
                        "author_name": turn.speaker,
                    }
                    for turn in turns
                ],
            },
            id=f"{conversation.id}-{number}",
            source=SOURCE,
            time=turns[-1].time,
        )
        yield event, {memory_id(SOURCE, event.id, place): turn.id for place, turn in enumerate(turns)}


def questions_of(conversation: Conversation, file: str) -> Iterator[evaluation.MemoryQuestion]:
    """Yield the questions of a conversation for ``graphweft eval``. The category is a tag."""
    for question in conversation.questions:
        place = Place(file=file)
        yield evaluation.MemoryQuestion(
            text=question.text,
            scope=MemoryScope(user_id=conversation.id),
            place=place,
            expect=tuple(evaluation.ExpectedMessage(id=id, place=place) for id in sorted(question.evidence)),
            tags=(f"category {question.category}",),
        )


def _conversation(sample: Mapping[str, Any]) -> Conversation:
    sessions = sample["conversation"]
    turns: list[LocomoTurn] = []
    names = sorted(int(name.split("_")[1]) for name in sessions if re.fullmatch(r"session_\d+", name))
    for number in names:
        began = datetime.strptime(sessions[f"session_{number}_date_time"], _WHEN).replace(tzinfo=UTC)
        turns += [
            LocomoTurn(
                id=turn["dia_id"],
                session=number,
                time=began + timedelta(seconds=place),
                speaker=turn["speaker"],
                text=turn["text"],
            )
            for place, turn in enumerate(sessions[f"session_{number}"])
        ]
    there = {turn.id for turn in turns}
    questions = [
        LocomoQuestion(
            text=asked["question"],
            category=asked["category"],
            evidence=_turn_ids(asked.get("evidence") or ()) & there,
        )
        for asked in sample["qa"]
    ]
    return Conversation(
        id=sample["sample_id"],
        first=sessions["speaker_a"],
        turns=tuple(turns),
        questions=tuple(question for question in questions if question.evidence),
        asked=len(questions),
    )


def _turn_ids(evidence: Sequence[str]) -> frozenset[str]:
    return frozenset(f"D{int(session)}:{int(turn)}" for item in evidence for session, turn in _TURN_ID.findall(item))
