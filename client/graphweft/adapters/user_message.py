"""The user's message as the context variables of a request: ``last_message``, and ``messages`` with that one message.

Rejected: earlier messages in ``messages`` too. A request would grow with its chat, and a rule would search by what the
user has left behind. It is a list because a client of your own may send a history.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from graphweft.adapters.values import MAX_CHARACTERS
from graphweft.chat_formats import read_messages
from graphweft.chat_formats.results import questions

_MAX_CHARACTERS: Final = MAX_CHARACTERS // 2
"""Characters of the message that a request holds, because it holds them twice."""


def message_variables(message: object) -> dict[str, Any]:
    """Return the variables; none if the message is empty, or not a text."""
    if not isinstance(message, str) or not message.strip():
        return {}
    kept = message[:_MAX_CHARACTERS]
    return {"last_message": kept, "messages": [{"role": "user", "text": kept}]}


def message_of_user(messages: Iterable[Any], agents: Container[str | None] = ()) -> str | None:
    """Return the text of the user's last question among the messages of a model call, or None without one.

    Where agents talk to each other, each gets what the others said as messages of a user, with the names of the others.
    So a message with a name in ``agents`` counts only if all have one.
    """
    read = list(read_messages(messages, strict=False))
    asked = [read[place] for place in questions(read)]
    found = [message for message in asked if message.agent not in agents] or asked
    return found[-1].text if found else None
