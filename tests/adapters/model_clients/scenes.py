"""Plain loops with the real clients of OpenAI, Anthropic and litellm, run in an environment that has them.

The model is that of ``model_server.py``. ``python tests/adapters/model_clients/scenes.py NAME …`` prints the result of
a scene as JSON, in its last line.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import fetches a file

import anthropic
import litellm
import openai
from kit import CONCURRENT, IDS, PROMPTS, Result, Scene, cancel, main, outcome, timed

from graphweft import wrap_anthropic, wrap_litellm, wrap_openai
from graphweft.adapters.core import Adapter

sys.path.insert(0, str(Path(__file__).parent))
from model_server import ModelServer

INSTRUCTIONS = "You are Planner."
KEYS = {"api_key": "none", "max_retries": 0}
TOOLS = {"weather": lambda city: f"sunny in {city}", "book": lambda room: f"Error: {room} is taken"}


class Loop:
    """A plain loop with one API, synchronous or not, streamed or not. ``say`` gives the model a message of the user."""

    def __init__(self, scene: Scene, server: ModelServer, api: str, mode: str, **wrapping: Any) -> None:
        self.api, self.mode = api, mode
        self.is_async, self.streams = mode.startswith("a"), mode.endswith("stream")
        self.history: list[Any] = []
        self.options: dict[str, Any] = {}
        self.parts = 0
        named: dict[str, Any] = {"app": IDS["app_id"], "chat": IDS["chat_id"], "user": IDS["user_id"]}
        named |= {"workflow": IDS["workflow_name"], "agent": "Planner", "remember": False, **wrapping}
        if scene.attached:
            named["adapter"] = scene.adapter().core
        make, wrap = _CLIENTS[api]
        self.client = make(server.url, self.is_async)
        self.wrapped = wrap(self.client, **named) if scene.attached else self.client

    async def say(self, text: str) -> str | None:
        """Return the answer, after all tools that the model calls."""
        self.history.append({"role": "user", "content": text})
        while True:
            answer, calls = await self.ask()
            if not calls:
                return answer
            for id, name, arguments in calls:
                self.result(id, TOOLS[name](**arguments))

    async def ask(self) -> tuple[str | None, list[tuple[str, str, dict[str, Any]]]]:
        """Call the model once."""
        create, options = self.call()
        made = create(**options, **self.options)
        if inspect.isawaitable(made):
            made = await made
        if not self.streams:
            return self.read(made)
        return self.read(await self.collected(made))

    async def collected(self, stream: Any) -> Any:
        """Return the parts of a stream."""
        if self.is_async:
            return [part async for part in stream]
        return list(stream)

    def call(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the function and its arguments."""
        more = {"stream": True} if self.streams else {}
        system = [{"role": "system", "content": INSTRUCTIONS}]
        match self.api:
            case "chat":
                return self.wrapped.chat.completions.create, {
                    "model": "fake", "messages": [*system, *self.history], **more,
                }  # fmt: skip
            case "litellm":
                return self.wrapped, {"model": "openai/fake", "messages": [*system, *self.history], **more}
            case "responses":
                return self.wrapped.responses.create, {
                    "model": "fake", "instructions": INSTRUCTIONS, "input": self.history, **more,
                }  # fmt: skip
            case _:
                return self.wrapped.messages.create, {
                    "model": "fake", "max_tokens": 9, "system": INSTRUCTIONS, "messages": self.history, **more,
                }  # fmt: skip

    def result(self, call_id: str, text: str) -> None:
        """Add the result of a tool."""
        match self.api:
            case "chat" | "litellm":
                self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case "responses":
                self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})
            case _:
                failed = text.startswith("Error")
                part = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": failed}
                if not isinstance(self.history[-1]["content"], list) or self.history[-1]["role"] != "user":
                    self.history.append({"role": "user", "content": []})
                self.history[-1]["content"].append(part)

    def read(self, found: Any) -> tuple[str | None, list[tuple[str, str, dict[str, Any]]]]:
        """Return the text and the tool calls, and add the answer to the history."""
        if self.streams:
            self.parts += len(found)
        match self.api:
            case "chat" | "litellm":
                message = _merged(found) if self.streams else found.choices[0].message
                self.history.append(message)
                calls = (message.get("tool_calls") if isinstance(message, dict) else message.tool_calls) or []
                content = message["content"] if isinstance(message, dict) else message.content
                named = [json.loads(json.dumps(one, default=lambda value: value.model_dump())) for one in calls]
                return content, [
                    (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"])) for one in named
                ]
            case "responses":
                response = found[-1].response if self.streams else found
                self.history += [item.model_dump(exclude_none=True) for item in response.output]
                calls = [item for item in response.output if item.type == "function_call"]
                return response.output_text or None, [
                    (one.call_id, one.name, json.loads(one.arguments)) for one in calls
                ]
            case _:
                content = _blocks(found) if self.streams else [block.model_dump() for block in found.content]
                self.history.append({"role": "assistant", "content": content})
                texts = [block["text"] for block in content if block["type"] == "text"]
                calls = [block for block in content if block["type"] == "tool_use"]
                return "".join(texts) or None, [(one["id"], one["name"], one["input"]) for one in calls]


def _merged(chunks: list[Any]) -> dict[str, Any]:
    """Return the message of the chunks of a stream."""
    text, calls = "", {}
    for delta in (chunk.choices[0].delta for chunk in chunks if chunk.choices):
        text += delta.content or ""
        for one in delta.tool_calls or ():
            known = calls.setdefault(one.index, {"type": "function", "function": {"name": "", "arguments": ""}})
            known["id"] = one.id or known.get("id")
            known["function"]["name"] += one.function.name or ""
            known["function"]["arguments"] += one.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    return {**message, "tool_calls": list(calls.values())} if calls else message


def _blocks(events: list[Any]) -> list[dict[str, Any]]:
    """Return the content of the events of a stream."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event.type == "content_block_start":
            blocks.append({**event.content_block.model_dump(exclude_none=True), "json": ""})
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            blocks[-1]["text"] += event.delta.text
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            blocks[-1]["json"] += event.delta.partial_json
    for block in blocks:
        whole = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(whole)
    return blocks


def _openai(url: str, is_async: bool) -> Any:
    return (openai.AsyncOpenAI if is_async else openai.OpenAI)(base_url=f"{url}/v1", **KEYS)


def _anthropic(url: str, is_async: bool) -> Any:
    return (anthropic.AsyncAnthropic if is_async else anthropic.Anthropic)(base_url=url, **KEYS)


def _litellm(url: str, is_async: bool) -> Any:
    function = litellm.acompletion if is_async else litellm.completion

    def complete(*args: Any, **named: Any) -> Any:
        return function(*args, api_base=f"{url}/v1", api_key="none", max_retries=0, **named)

    async def acomplete(*args: Any, **named: Any) -> Any:
        return await function(*args, api_base=f"{url}/v1", api_key="none", max_retries=0, **named)

    return acomplete if is_async else complete


_CLIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "chat": (_openai, wrap_openai),
    "responses": (_openai, wrap_openai),
    "messages": (_anthropic, wrap_anthropic),
    "litellm": (_litellm, wrap_litellm),
}


def run(work: Awaitable[Any]) -> Any:
    """Run a coroutine to its end."""

    async def go() -> Any:
        return await work

    return asyncio.run(go())


def told(server: ModelServer) -> dict[str, Any]:
    """Return the prompts that the model got."""
    PROMPTS[:] = [
        ("Planner", [{"role": "system", "content": system}, {"role": "input", "content": user}])
        for system, user in server.prompts
    ]
    return {}


def loop(
    scene: Scene, api: str, mode: str, text: str = "weather_Oslo", failing: str = "", place: str = "last_message"
) -> dict[str, Any]:
    """One message of the user, which the model answers with the help of tools, or fails at."""
    server = ModelServer()
    made = Loop(scene, server, api, mode, context_place=place)
    answer, error = outcome(lambda: run(made.say("fail" if failing else text.replace("_", " "))))
    kept = json.loads(json.dumps(made.history, default=lambda value: value.model_dump()))
    server.close()
    told(server)
    sent = [{name: value for name, value in body.items() if name not in {"messages", "input", "system", "instructions"}}
            for body in server.bodies]  # fmt: skip
    return {"answers": [answer, kept, made.parts, sent], "error": error, "kept": kept, "bodies": server.bodies}


def repeated(scene: Scene, api: str, mode: str) -> dict[str, Any]:
    """Three messages of one chat."""
    server = ModelServer()
    made = Loop(scene, server, api, mode)

    async def go() -> list[str | None]:
        return [await made.say("weather Oslo") for _ in range(3)]

    answers = asyncio.run(go())
    told(server)
    return {"answers": answers, "kept": json.loads(json.dumps(made.history, default=lambda value: value.model_dump()))}


def together(scene: Scene, api: str) -> dict[str, Any]:
    """Messages of several chats, and two of one chat, at the same time: all wait in their first model call."""
    server = ModelServer()

    async def go() -> list[str | None]:
        loops = [Loop(scene, server, api, "async", chat=chat) for chat, _ in CONCURRENT]
        loops[1].wrapped = loops[0].wrapped
        said = [one.say(f"meet {city}") for one, (_, city) in zip(loops, CONCURRENT, strict=True)]
        return await asyncio.gather(*said)

    answers = asyncio.run(go())
    told(server)
    return {"answers": answers}


def cancelled(scene: Scene, api: str) -> dict[str, Any]:
    """The caller gives up while the model works."""
    server = ModelServer()

    async def go() -> str:
        made = Loop(scene, server, api, "async")
        task = asyncio.create_task(made.say("hang"))
        await asyncio.to_thread(server.asked.wait)
        return await cancel(task)

    error = asyncio.run(go())
    server.close()
    return {"error": error}


def left(scene: Scene, api: str, mode: str, how: str) -> dict[str, Any]:
    """A stream that is read in part: closed early, forgotten, or left at the end of its answer."""
    server = ModelServer()
    made = Loop(scene, server, api, mode)

    async def go() -> None:
        made.history.append({"role": "user", "content": "hello"})
        create, options = made.call()
        stream = create(**options)
        stream = await stream if inspect.isawaitable(stream) else stream
        steps = 1 if how != "finished" else 1_000
        for _ in range(steps):
            part = await anext(stream) if made.is_async else next(stream)
            if made.api == "chat" and part.choices[0].finish_reason:
                break
            if getattr(part, "type", "") in {"response.completed", "message_stop"}:
                break
        if how == "closed":
            closing = stream.close()
            if inspect.isawaitable(closing):
                await closing
        if how == "forgotten":
            scene.wait()

    asyncio.run(go())
    return {}


def helpers(scene: Scene, api: str, mode: str) -> dict[str, Any]:
    """The streams of the clients' own helpers, as their documents show them."""
    server = ModelServer()
    made = Loop(scene, server, api, mode)
    made.streams = False
    made.history.append({"role": "user", "content": "hello"})
    create, options = made.call()
    resource = create.__self__ if hasattr(create, "__self__") else None
    resource = {"chat": lambda: made.wrapped.chat.completions, "responses": lambda: made.wrapped.responses,
                "messages": lambda: made.wrapped.messages}[api]()  # fmt: skip

    async def go() -> str:
        if made.is_async:
            async with resource.stream(**options) as stream:
                async for _ in stream:
                    pass
                return _final(stream, api, await _finished(stream, api))
        with resource.stream(**options) as stream:
            for _ in stream:
                pass
            return _final(stream, api, _finished(stream, api))

    answers = asyncio.run(go())
    told(server)
    return {"answers": answers}


def _finished(stream: Any, api: str) -> Any:
    return {"chat": "get_final_completion", "responses": "get_final_response", "messages": "get_final_message"}[
        api
    ] and getattr(stream, {"chat": "get_final_completion", "responses": "get_final_response",
                           "messages": "get_final_message"}[api])()  # fmt: skip


def _final(stream: Any, api: str, found: Any) -> str:
    match api:
        case "chat":
            return str(found.choices[0].message.content)
        case "responses":
            return str(found.output_text)
        case _:
            return str(found.content[0].text)


def views(scene: Scene) -> dict[str, Any]:
    """Clients with other options, raw responses, parsed answers, and streamed bytes."""
    server = ModelServer()
    made = Loop(scene, server, "chat", "sync")
    client, options = made.wrapped, {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
    found = [
        client.with_options(timeout=9).chat.completions.create(**options).choices[0].message.content,
        client.chat.completions.with_raw_response.create(**options).parse().choices[0].message.content,
        client.with_raw_response.chat.completions.create(**options).parse().choices[0].message.content,
        client.chat.completions.parse(**options).choices[0].message.content,
    ]
    with client.chat.completions.with_streaming_response.create(**options) as streamed:
        found.append(json.loads(streamed.read())["choices"][0]["message"]["content"])
    untouched = made.client.chat.completions.create(**options).choices[0].message.content
    told(server)
    same = isinstance(client, openai.OpenAI)
    return {"answers": [*found, untouched, same]}


def contents(scene: Scene, place: str = "last_message") -> dict[str, Any]:
    """Instructions in all forms: none, a developer's, parts, objects; and a message with parts."""
    server = ModelServer()
    made = Loop(scene, server, "chat", "sync", context_place=place)
    create = made.wrapped.chat.completions.create
    said = [{"type": "text", "text": "hello"}]
    given: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": said}],
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": "hello"}],
    ]
    before = json.dumps(given)
    for messages in given:
        create(model="fake", messages=messages)
    return {"answers": [body["messages"] for body in server.bodies], "same": json.dumps(given) == before}


def remembered(scene: Scene, api: str, mode: str) -> dict[str, Any]:
    """What becomes a memory, and what the context is asked with."""
    server = ModelServer()
    made = Loop(scene, server, api, mode, remember=True)
    answers = run(made.say("weather Oslo"))

    def more() -> dict[str, Any]:
        return {"questions": [request.context.get("messages") for request in scene.bus.requests],
                "users": sorted({str(event.userid) for event in scene.bus.events}), "answers": answers}  # fmt: skip

    return more  # type: ignore[return-value]


def odd(scene: Scene) -> dict[str, Any]:
    """Arguments of unknown form reach the client as they are, and its own errors the caller."""
    server = ModelServer()
    made = Loop(scene, server, "chat", "sync")
    create = made.wrapped.chat.completions.create
    errors = [outcome(lambda: create(**options))[1] for options in ({}, {"model": "fake", "messages": 7})]  # noqa: B023
    generator = (message for message in [{"role": "user", "content": "hello"}])
    answer, error = outcome(lambda: create(model="fake", messages=generator).choices[0].message.content)
    return {"answers": answer, "errors": [str(one).split(":")[0] for one in errors], "error": error}


def unsettled() -> list[str | None]:
    """Return the errors of wrong arguments."""
    client = openai.OpenAI(api_key="none")
    return [
        outcome(lambda: wrap_openai(client))[1],
        outcome(lambda: wrap_openai(object(), app="shop"))[1],
        outcome(lambda: wrap_anthropic(client, app="shop"))[1],
        outcome(lambda: wrap_litellm(7, app="shop"))[1],  # type: ignore[type-var]
    ]


def settings(scene: Scene) -> Result:
    """Wrong arguments of the wrappers."""
    os.environ["GRAPHWEFT_BUS_URL"] = "redis://127.0.0.1:1"
    return {"errors": unsettled()}


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns without tools."""
    server = ModelServer()
    made = Loop(scene, server, "chat", "sync")
    return timed(count, lambda: run(made.say("hello")))


def _adapter(**named: Any) -> Any:
    return SimpleNamespace(core=Adapter(source="/graphweft/openai", **named))


if __name__ == "__main__":
    main(_adapter, globals())
