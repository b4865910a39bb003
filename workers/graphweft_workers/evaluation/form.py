"""The format of files of questions for ``graphweft eval``."""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts.memory import SCOPE_PATTERN
from graphweft_rules.files.forms import FlagKey, Form, Key, ListKey, Pattern, TextKey

SCOPES: Final = {"user": "user_id", "chat": "thread_id", "agent": "agent_id", "application": "application_id"}
"""Keys of a question, and the fields of ``MemoryScope``."""
ANSWERS: Final = ("expect", "contains", "nothing")

_SCOPE: Final = Pattern(SCOPE_PATTERN, "Not a scope: no control characters, and no blank at either end.")


def _scope(meaning: str) -> Key:
    return TextKey(meaning, pattern=_SCOPE, editor={"maxLength": 256})


def _texts(meaning: str, of: str, example: str, **more: Any) -> ListKey:
    return ListKey(
        f"{meaning} A text, or a list of texts.",
        text=TextKey(of, wanted=f"a list of strings, {example}"),
        wanted=f"a list, {example}",
        alone=True,
        editor=more,
    )


QUESTION: Final = Form(
    name="a question",
    meaning="A question to the memory of a scope, and what answers it.",
    keys={
        "question": TextKey("What is asked, as a user would ask it.", required=True),
        "user": _scope("Whose memory is asked."),
        "chat": _scope("The chat whose memory is asked."),
        "agent": _scope("The agent whose memory is asked."),
        "application": _scope("The application whose memory is asked, a scope within the app."),
        "expect": _texts(
            "Ids of the messages that answer it (`message_id`), or of memories. Each is a part of the answer.",
            "The id of a message or memory.",
            '["m7"]',
        ),
        "contains": _texts(
            "Words or phrases that the answer has, in small or capital letters. Each is a part of the answer.",
            "A word or a phrase.",
            '["Stavanger"]',
        ),
        "nothing": FlagKey(
            "true: the memory does not know it, and should not show anything as an answer.", editor={"const": True}
        ),
        "stale": _texts(
            "Words or phrases of what was true once: a row with one must not come before the answer.",
            "A word or a phrase.",
            '["Oslo"]',
        ),
        "tags": _texts("Groups that the question counts for.", "The name of a group.", '["home"]'),
    },
    one_of=ANSWERS,
    any_of=tuple(SCOPES),
)
QUESTION_FILE: Final = Form(
    name="a file of questions",
    meaning="Questions whose answers are known. `graphweft eval` asks them and measures what the memory finds.",
    keys={"questions": ListKey("The questions.", form=QUESTION, required=True)},
)
