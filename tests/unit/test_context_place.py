"""Where context stands in a prompt, and which errors of providers are refusals of it."""

from __future__ import annotations

from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from graphweft.adapters.context_place import Attempt, below_message, change, is_refusal, placed, undone, user_message

QUESTION = {"role": "user", "content": "Tea?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "look"}}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "Green."}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}


class ClientError(Exception):
    """An error of a client, with what it tells about the answer."""

    def __init__(self, **about: Any) -> None:
        super().__init__("no")
        self.__dict__ |= about


def caused(error: Exception, *causes: Exception) -> Exception:
    """Return the error, with each cause being that of the one before."""
    last: BaseException = error
    for cause in causes:
        last.__cause__ = cause
        last = cause
    return error


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (ClientError(status_code=400), True),
        (ClientError(status_code=413), True),
        (ClientError(status_code=HTTPStatus.UNPROCESSABLE_ENTITY), True),
        (ClientError(code=400, status="INVALID_ARGUMENT"), True),  # google.genai
        (ClientError(code="invalid_request", status_code=400), True),  # openai
        (ClientError(response=SimpleNamespace(status_code=400)), True),  # httpx
        (ClientError(response={"ResponseMetadata": {"HTTPStatusCode": 400}}), True),  # boto
        (caused(RuntimeError("the model failed"), ClientError(status_code=400)), True),
        (caused(ClientError(status_code=500), ClientError(status_code=400)), False),
        (caused(RuntimeError("a"), ValueError("b")), False),
        (ClientError(status_code=401), False),
        (ClientError(status_code=429), False),
        (ClientError(status_code=True), False),
        (ClientError(code="400"), False),
        (ClientError(response=None), False),
        (ConnectionError("no model"), False),
    ],
)
def test_a_refusal_is_an_error_about_what_the_request_holds(error: Exception, refused: bool) -> None:
    assert is_refusal(error) is refused


def test_an_error_that_causes_itself_is_looked_at_a_few_times() -> None:
    error = RuntimeError("a")
    error.__cause__ = error
    assert not is_refusal(error)


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([QUESTION], 0),
        ([QUESTION, CALL, RESULT], 0),
        ([QUESTION, CALL, RESULT, PICTURE], 0),
        ([QUESTION, {"role": "assistant", "content": "Yes."}, QUESTION], 2),
    ],
)
def test_context_stands_below_the_last_question(messages: list[dict[str, Any]], at: int) -> None:
    found = placed(messages, "NOTES", "last_message", put=below_message, own=user_message)
    assert found == [*messages[:at], {"role": "user", "content": "Tea?\n\nNOTES"}, *messages[at + 1 :]]
    own = placed(messages, "NOTES", "own_message", put=below_message, own=user_message)
    assert own == [*messages[: at + 1], {"role": "user", "content": "NOTES"}, *messages[at + 1 :]]


@pytest.mark.parametrize("messages", [[], [CALL, RESULT], [{"role": "user", "content": 7}]])
def test_without_a_question_context_belongs_into_the_instructions(messages: list[dict[str, Any]]) -> None:
    assert placed(messages, "NOTES", "last_message", put=below_message, own=user_message) is None
    assert placed([QUESTION], "NOTES", "instructions", put=below_message, own=user_message) is None


@pytest.mark.parametrize("place", ["last_message", "own_message"])
def test_a_change_can_be_undone_after_other_changes(place: Any) -> None:
    before = [QUESTION, CALL, RESULT]
    after = placed(before, "NOTES", place, put=below_message, own=user_message)
    assert after is not None
    assert undone([PICTURE, *after, QUESTION], *change(before, after)) == [PICTURE, *before, QUESTION]


def test_a_refused_request_is_sent_once_without_context() -> None:
    sent: list[str] = []
    refusals: list[BaseException] = []
    refusal = ClientError(status_code=400)

    def call(request: str) -> str:
        sent.append(request)
        if request == "with":
            raise refusal
        return "answer"

    assert Attempt("plain", "with", refused=refusals.append).ask(call) == "answer"
    assert (sent, refusals) == (["with", "plain"], [refusal])


@pytest.mark.parametrize(("request_", "times"), [("with", 2), ("plain", 1)])
def test_the_error_of_the_plain_request_is_the_callers(request_: str, times: int) -> None:
    errors = [ClientError(status_code=400) for _ in range(3)]
    raised = iter(errors)
    refusals: list[BaseException] = []

    def call(request: str) -> str:
        raise next(raised)

    with pytest.raises(ClientError) as caught:
        Attempt("plain", request_, refused=refusals.append).ask(call)
    assert caught.value is errors[times - 1]
    assert refusals == []
