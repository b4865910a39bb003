"""The summariser that asks a chat model over HTTP: what it sends, what it takes, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from tests.services.models import Failure, ModelServer

from graphweft_contracts.memory import MemoryRole, MemoryScope
from graphweft_workers.features.memory.openai_summariser import OpenAISummariser
from graphweft_workers.features.memory.summariser import ConversationFailed, MemoryText, SummariserUnavailable, Summary

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
SAID: list[tuple[MemoryRole, str]] = [
    ("user", "I live in Oslo"), ("assistant", "Nice."), ("user", "As I said: Oslo"), ("user", "I like tea"),
]  # fmt: skip
GOOD: dict[str, Any] = {
    "summary": "The user lives in Oslo.",
    "facts": [{"subject": "user", "predicate": "lives in", "object": "Oslo", "text": "", "messages": [3, 1]}],
    "preferences": [{"text": "likes tea", "messages": [4]}],
}
GARBAGE = ["no JSON", "", "[]", "{}", '{"summary": 3}', '{"summary": " "}', '{"summary": "x", "facts": [{}]}']


def messages(said: Sequence[tuple[MemoryRole, str]] = SAID) -> list[MemoryText]:
    return [
        MemoryText(id=f"m{number}", role=role, text=text, time=T0 + timedelta(minutes=number))
        for number, (role, text) in enumerate(said, 1)
    ]


def summarise(server: ModelServer, said: list[MemoryText] | None = None, **options: Any) -> Summary:
    async def run() -> Summary:
        summariser = OpenAISummariser(server.url, "some-model", **options)
        try:
            return await summariser.summarise(said or messages(), scope=MemoryScope(user_id="u1"))
        finally:
            await summariser.aclose()

    return asyncio.run(run())


def answering(*answers: str) -> Callable[[list[dict[str, Any]]], str]:
    """Give the answers in turn; the last one from then on."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def test_an_answer_is_taken_with_the_messages_that_it_names(model_server: ModelServer) -> None:
    model_server.answer = answering(json.dumps(GOOD))
    summary = summarise(model_server, api_key=SecretStr("key"))
    assert (summary.text, summary.model) == ("The user lives in Oslo.", "some-model")
    [fact] = summary.facts
    assert (fact.subject, fact.predicate, fact.object) == ("user", "lives in", "Oslo")
    assert (fact.memory_ids, fact.valid_from) == (("m1", "m3"), T0 + timedelta(minutes=1))
    [preference] = summary.preferences
    assert (preference.text, preference.memory_ids) == ("likes tea", ("m4",))
    [request] = model_server.requests
    assert request.headers["authorization"] == "Bearer key"
    assert request.body["response_format"] == {"type": "json_object"}
    asked = json.loads(request.body["messages"][1]["content"])
    assert [(each["number"], each["role"], each["text"]) for each in asked] == [
        (number, *said) for number, said in enumerate(SAID, 1)
    ]


def test_an_answer_in_a_fence_is_taken(model_server: ModelServer) -> None:
    model_server.answer = answering(f"```json\n{json.dumps(GOOD)}\n```")
    assert summarise(model_server).text == GOOD["summary"]


def test_what_no_user_said_is_left_out(model_server: ModelServer) -> None:
    fact = GOOD["facts"][0]
    answer = GOOD | {
        "facts": [
            fact | odd for odd in ({"messages": [2]}, {"messages": [0, 99]}, {"object": "x" * 257}, {"object": ""})
        ],
        "preferences": [{"text": "likes tea", "messages": []}, {"text": "x" * 5000, "messages": [1]}],
    }  # fmt: skip
    model_server.answer = answering(json.dumps(answer))
    summary = summarise(model_server)
    assert (summary.facts, summary.preferences) == ((), ())


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_asked_for_again(model_server: ModelServer, garbage: str) -> None:
    model_server.answer = answering(garbage, json.dumps(GOOD))
    assert summarise(model_server).model == "some-model"
    assert len(model_server.requests) == 2


def test_messages_that_a_model_does_not_condense_hold_up_no_others(model_server: ModelServer) -> None:
    model_server.answer = lambda asked: "no" if "Oslo" in asked[1]["content"] else json.dumps(GOOD)
    summary = summarise(model_server)
    assert summary.model == "extractive"
    assert [fact.object for fact in summary.facts] == ["Oslo"]
    assert len(model_server.requests) == 3


def test_refused_messages_hold_up_no_others(model_server: ModelServer) -> None:
    model_server.answer = answering(json.dumps(GOOD))
    model_server.fail(Failure.error(400, "content_filter"))
    assert summarise(model_server).model == "extractive"


@pytest.mark.parametrize("status", [400, 200])
def test_a_model_that_condenses_nothing_is_set_up_wrongly(model_server: ModelServer, status: int) -> None:
    model_server.answer = answering("no")
    model_server.always = Failure.error(status) if status != 200 else None
    with pytest.raises(SummariserUnavailable, match="'some-model'") as error:
        summarise(model_server)
    assert "Oslo" not in str(error.value)


@pytest.mark.parametrize(
    "failure",
    [Failure.error(401), Failure.error(404), Failure.error(503), Failure.too_many("7"), Failure(hang_up=True)],
)
def test_what_says_nothing_about_the_messages_is_waited_out(model_server: ModelServer, failure: Failure) -> None:
    model_server.always = failure
    with pytest.raises(SummariserUnavailable) as error:
        summarise(model_server)
    assert error.value.retry_after_s > 0
    assert not isinstance(error.value, ConversationFailed)
    asked = len(model_server.requests)
    assert asked == (1 if failure.status in {401, 429} else 2), (
        "with a test conversation if the messages may be the cause"
    )


def test_an_endpoint_that_hangs_is_given_up(model_server: ModelServer) -> None:
    model_server.always = Failure(hang=True)
    with pytest.raises(SummariserUnavailable, match="did not answer"):
        summarise(model_server, timeout_s=0.2)


def test_long_conversations_are_cut_evenly(model_server: ModelServer) -> None:
    model_server.answer = answering(json.dumps(GOOD))
    summarise(model_server, messages([("user", "x" * 1000), ("user", "short"), ("user", "y" * 1000)]), characters=900)
    asked = json.loads(model_server.requests[0].body["messages"][1]["content"])
    assert [len(each["text"]) for each in asked] == [300, 5, 300]
