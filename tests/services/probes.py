"""Conversations in which facts are planted among much else, and the questions that ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from graphweft_contracts import Event

__all__ = ("ADA", "BEN", "START", "Planted", "conversation", "within_reach")

START: Final = datetime(2026, 2, 1, 10, tzinfo=UTC)
_A_CHAT: Final = 45
"""Messages."""


@dataclass(frozen=True, slots=True)
class Planted:
    """Something that a user says once, the question for it, and the words that an answer holds."""

    chat: str
    said: str
    question: str
    answer: str


ADA: Final[Sequence[Planted]] = (
    Planted("a1", "I am allergic to peanuts", "Am I allergic to peanuts?", "allergic to peanuts"),
    Planted("a1", "My name is Ada Winter.", "What is my name?", "Ada Winter"),
    Planted("a1", "I live in Oslo, near the harbour.", "Where do I live?", "Oslo"),
    Planted("a1", "By the way, the code of my bike lock is 4711.", "What is the code of the bike lock?", "4711"),
    Planted("a1", "I prefer window seats.", "Do I prefer the window or the aisle?", "window"),
    Planted("a1", "My daughter Maren starts school in August.", "When does Maren start school?", "August"),
    Planted("a2", "I work for the national railway.", "Who do I work for?", "railway"),
    Planted("a2", "I hate coriander, it tastes like soap.", "What about coriander?", "coriander"),
    Planted("a2", "My dentist is Doctor Lindqvist.", "Who is my dentist?", "Lindqvist"),
    Planted("a2", "We got married on the third of June 2015.", "When were we married?", "June 2015"),
    Planted("a2", "My passport expires in March 2027.", "When does my passport expire?", "March 2027"),
    Planted("a2", "I'm not allergic to cats, luckily.", "Am I allergic to cats?", "not allergic to cats"),
)  # fmt: skip
BEN: Final[Sequence[Planted]] = (
    Planted("b1", "I am not allergic to peanuts", "Am I allergic to peanuts?", "not allergic to peanuts"),
    Planted("b1", "My name is Ben Summer.", "What is my name?", "Ben Summer"),
    Planted("b1", "I live in Bergen, on a boat.", "Where do I live?", "on a boat"),
    Planted("b1", "The code of my bike lock is 9052.", "What is the code of the bike lock?", "9052"),
    Planted("b1", "I prefer aisle seats.", "Do I prefer the window or the aisle?", "aisle"),
    Planted("b2", "I work for a bank.", "Who do I work for?", "bank"),
    Planted("b2", "I love coriander.", "What about coriander?", "love"),
    Planted("b2", "My dentist is Doctor Okafor.", "Who is my dentist?", "Okafor"),
    Planted("b2", "My passport expires in May 2031.", "When does my passport expire?", "May 2031"),
    Planted("b2", "I am allergic to cats.", "Am I allergic to cats?", "allergic to cats"),
)  # fmt: skip
"""Says of everything the contrary."""

_USER: Final = (
    "Could you look for a train to Bergen that leaves before nine in the morning and has a quiet coach?",
    "What would the first class ticket for that train cost, and can it be paid for at the station?",
    "I would like to see the trains of the afternoon as well, because the morning is rather early for me.",
    "Thanks, that train looks good, please keep the ticket in the basket while I think about it.",
    "Is there a train with a restaurant coach, or at least one where coffee is sold at the seat?",
    "How long does the train wait at the border, and does one have to change to another train there?",
)
_ASSISTANT: Final = (
    "There are three trains to Bergen in the morning, and the one at half past eight has a quiet coach.",
    "The first class ticket for the train costs twice as much, and it can be paid for at the station.",
    "The ticket is in the basket, and the train has seats left in the quiet coach and in the restaurant coach.",
    "The train waits at the border for ten minutes, and there is no need to change to another train.",
)


def conversation(app_id: str, user: str, planted: Sequence[Planted], *, source: str = "/probe") -> list[Event]:
    """Return what a user and an assistant say in the user's chats: each planted thing once, among 45 messages."""
    made: list[Event] = []
    for chat in dict.fromkeys(each.chat for each in planted):
        own = [each.said for each in planted if each.chat == chat]
        # Early, so that everything planted is among what is condensed and let go.
        places = {3 + 4 * number: said for number, said in enumerate(own)}
        for number in range(_A_CHAT):
            said = _ASSISTANT[number // 2 % len(_ASSISTANT)] if number % 2 == 0 else _USER[number // 2 % len(_USER)]
            role = "assistant" if number % 2 == 0 else "user"
            message = {"role": role, "text": places.get(number, said), "message_id": f"{chat}-{number}"}
            data = {"user_id": user, "thread_id": chat, "messages": [message]}
            time = START + timedelta(minutes=len(made))
            made.append(
                Event.create(
                    "memory.add", app_id=app_id, chat_id=chat, data=data, id=f"{user}-{chat}-{number}", source=source,
                    time=time,
                )
            )  # fmt: skip
    return made


def within_reach(planted: Sequence[Planted], found: Mapping[str, Sequence[str]]) -> dict[str, bool]:
    """Return for each question whether one of the texts that were found for it holds the answer."""
    return {
        each.question: any(each.answer.lower() in text.lower() for text in found[each.question]) for each in planted
    }
