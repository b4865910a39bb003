"""Messages of chats in all their forms: oddities that servers and agents were seen to write."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from graphweft import Client, wrap_litellm
from graphweft.adapters.core import Adapter
from graphweft.adapters.model_clients.openai_chat import ChatCompletions
from graphweft.chat_formats import question_of, read_messages, results_of, without_reasoning
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, wire

CASES = Path(__file__).parents[1] / "fixtures" / "chat_formats"
MESSAGES = json.loads((CASES / "messages.json").read_text("utf-8"))
STREAMS = json.loads((CASES / "streams.json").read_text("utf-8"))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in MESSAGES])
def test_each_form_gives_its_calls_results_and_question(case: dict[str, Any]) -> None:
    messages = list(read_messages(case["messages"]))
    found = results_of(messages)
    answered = [
        [messages[call.message].calls[call.number].name, result.content if result.text is None else result.text]
        for call, place in sorted(found.answers.items())
        for result in [messages[place.message].results[place.number]]
    ]
    assert answered == case["results"]
    assert found.strays == []
    question = question_of(messages)
    assert question is not None
    assert messages[question].text == case["question"]
    assert sorted(name for message in messages for name in message.unread) == case.get("unread", [])
    if "answer" in case:
        assert messages[-1].text == case["answer"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in STREAMS])
def test_each_stream_gives_its_calls(case: dict[str, Any]) -> None:
    reader = ChatCompletions().reader({})
    for delta in case["deltas"]:
        reader.feed({"choices": [{"index": 0, "delta": delta}]})
    reader.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    answer = reader.answer()
    assert answer is not None
    assert [[call.id, call.name, call.arguments] for call in answer.calls] == case["calls"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>hm</think>Tea?", "Tea?"),
        ("<think>\nhm\n</think>\n\nTea?", "Tea?"),
        ("hm, they want tea\n</think>\n\nTea?", "Tea?"),
        ("<think>cut off", ""),
        ("<THINKING>hm</THINKING> Tea?", "Tea?"),
        ("<thought>hm</thought>Tea?", "Tea?"),
        ("[THINK]hm[/THINK]Tea?", "Tea?"),
        ("<think>a <think> b</think> c</think>Tea?", "Tea?"),
        ("<think>a</think>Tea<think>b</think>?", "Tea?"),
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Tea?", "Tea?"),
        ("Write `<think>` before and `</think>` behind.", "Write `<think>` before and `</think>` behind."),
        ("```\n<think>x</think>\n```", "```\n<think>x</think>\n```"),
        ("I think <that> is tea.", "I think <that> is tea."),
    ],
)
def test_reasoning_is_no_part_of_what_is_said(text: str, said: str) -> None:
    assert without_reasoning(text) == said


@pytest.mark.parametrize(
    "text", ["<think>" * 20_000, "<think>a</think>" * 10_000, "`<think>" * 20_000, "</think>" * 20_000]
)
def test_long_texts_of_marks_are_read_once(text: str) -> None:
    assert len(without_reasoning(text)) <= len(text)


class RecordResult:
    """A bus that keeps the events, and has context for each request."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.questions: list[Any] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        self.events += [wire.decode(event.fields) for event in events]
        return ["0:1" for _ in events]

    async def request(self, request: ContextRequest) -> ContextReply:
        self.questions.append(request.context.get("messages"))
        return ContextReply(id=request.id, text=f"{len(self.questions)} NOTES")

    async def aclose(self) -> None:
        """Nothing is open."""


class Loop:
    """A loop whose model is a function like ``litellm.completion``, with these answers."""

    def __init__(self, *given: dict[str, Any] | BaseException, **options: Any) -> None:
        self.bus = RecordResult()
        settings = {name: options.pop(name) for name in ("keep_reasoning",) if name in options}
        self.adapter = Adapter(Client(transport=self.bus), app_id="shop", chat_id="c", budget_ms=60_000, **settings)
        self.requests: list[list[dict[str, Any]]] = []
        self.given = list(given)
        self.history: list[dict[str, Any]] = []
        self.complete = wrap_litellm(self.answer, adapter=self.adapter, user="ada", chat="c", agent="A", **options)

    def answer(self, **options: Any) -> dict[str, Any]:
        self.requests.append(options["messages"])
        found = self.given.pop(0)
        if isinstance(found, BaseException):
            raise found
        return {"choices": [{"message": {"role": "assistant", **found}, "finish_reason": "stop"}]}

    def say(self, *messages: dict[str, Any]) -> None:
        self.history += messages
        response = self.complete(messages=list(self.history))
        self.history.append(response["choices"][0]["message"])

    def events(self, *types: str) -> list[dict[str, Any]]:
        assert self.adapter.flush()
        return [event.data for event in self.bus.events if event.type in types]

    def results(self) -> list[tuple[str, Any]]:
        return [(each["tool_name"], each["result"]) for each in self.events("tool.call_complete")]

    def turns(self) -> list[tuple[str, Any]]:
        return [(each["outcome"], each["response"]) for each in self.events("agent.turn_complete")]


def call(id: str | None, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(id: str | None, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


@pytest.mark.parametrize("id", ["", None])
def test_calls_without_ids_have_results_in_their_order(id: str | None) -> None:
    loop = Loop(
        {"tool_calls": [call(id, "weather", city="Oslo"), call(id, "weather", city="Bergen")]}, {"content": "Sun."}
    )
    loop.say(user("weather?"))
    loop.say(result(id, "sun"), result(id, "rain"))
    assert loop.results() == [("weather", "sun"), ("weather", "rain")]
    assert loop.turns() == [("completed", "Sun.")]
    starts = loop.events("tool.call_start")
    assert [each["arguments"] for each in starts] == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert (
        len({each["call_id"] for each in starts} | {each["call_id"] for each in loop.events("tool.call_complete")}) == 2
    )
    loop.adapter.close()


def test_ids_that_are_used_twice_or_replaced_lose_no_result() -> None:
    twice = {"tool_calls": [call("x", "look", at=1), call("x", "clock")]}
    loop = Loop(twice, {"tool_calls": [call("long-id", "look", at=2)]}, {"content": "Done."})
    loop.say(user("look"))
    loop.say(result("x", "tree"), result("x", "noon"))
    loop.history[-1] = {"role": "assistant", "tool_calls": [call("short", "look", at=2)]}
    loop.say(result("short", "house"))
    assert loop.results() == [("look", "tree"), ("clock", "noon"), ("look", "house")]
    assert loop.turns() == [("completed", "Done.")]
    loop.adapter.close()


def test_an_old_result_with_the_id_of_a_new_call_does_not_answer_it() -> None:
    loop = Loop(
        {"tool_calls": [call("x", "look", at=1)]}, {"content": "A tree."}, {"tool_calls": [call("x", "look", at=1)]},
        {"content": "Well."},
    )  # fmt: skip
    loop.say(user("look"))
    loop.say(result("x", "tree"))
    loop.say(user("again"))
    loop.say(user("never mind"))
    assert loop.results() == [("look", "tree")]
    loop.adapter.close()
    assert loop.results() == [("look", "tree"), ("look", None)]


def test_a_message_behind_a_result_neither_hides_it_nor_becomes_the_question() -> None:
    loop = Loop({"tool_calls": [call("c1", "see")]}, {"content": "A cat."})
    picture = [{"type": "text", "text": "Picture of the tool:"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    loop.say(user("What is it?"))
    loop.say(result("c1", "picture follows"), user(picture))
    assert loop.results() == [("see", "picture follows")]
    assert loop.turns() == [("completed", "A cat.")]
    [memory] = loop.events("memory.add")
    assert [each["text"] for each in memory["messages"]] == ["What is it?", "A cat."]
    assert loop.requests[1][0]["content"] == "What is it?\n\n1 NOTES"
    assert loop.adapter.stats.left_out == {"image_url": 1}
    loop.adapter.close()


@pytest.mark.parametrize(("keep", "said"), [(False, "Tea."), (True, "<think>hm</think>Tea.")])
def test_reasoning_becomes_no_response_and_no_memory_unless_it_is_kept(keep: bool, said: str) -> None:
    loop = Loop({"content": "<think>hm</think>Tea."}, keep_reasoning=keep)
    loop.say(user("Tea or coffee?"))
    assert loop.turns() == [("completed", said)]
    assert loop.events("memory.add")[0]["messages"][1]["text"] == said
    loop.adapter.close()


def test_consecutive_requests_share_all_but_the_last_question_and_answer() -> None:
    """Providers cache the longest prefix of a request that they have seen."""
    shares: dict[str, list[float]] = {}
    for place in ("last_message", "own_message", "instructions"):
        loop = Loop(*({"content": f"Answer {number}. " * 20} for number in range(6)), context_place=place)
        loop.history.append({"role": "system", "content": "You are helpful. " * 30})
        for number in range(6):
            loop.say(user(f"Question {number}? " * 10))
        prompts = ["".join(str(message["content"]) for message in request) for request in loop.requests]
        assert all("NOTES" in prompt for prompt in prompts)
        shares[place] = [_shared(*pair) for pair in itertools.pairwise(prompts)]
        loop.adapter.close()
    assert all(below > above for below, above in zip(shares["last_message"], shares["instructions"], strict=True))
    assert all(below > above for below, above in zip(shares["own_message"], shares["instructions"], strict=True))
    assert shares["last_message"][-1] > 0.8 > 0.5 > shares["instructions"][-1]


def _shared(one: str, other: str) -> float:
    """Return the part of a prompt that the next one begins with."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same) / len(one)
