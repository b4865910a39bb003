"""Shared by the scenes of all runtimes: a bus that records, and the result of a scene as JSON.

Runs in the environment of a runtime, which has graphweft's client and no package of the tests.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from graphweft import Client
from graphweft.adapters.core import Adapter
from graphweft.tracing import within
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, wire
from graphweft_contracts.clock import SystemClock
from graphweft_contracts.trace_context import TraceContext

IDS = {"app_id": "shop", "chat_id": "c1", "workflow_name": "Sales", "user_id": "u1"}
"""The ids of the chat of every scene."""
CONCURRENT = (("c1", "a"), ("c1", "b"), ("c2", "c"), ("c3", "d"))
"""Chats and cities of the runs of a scene with several runs at the same time."""
TRACE = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")
"""The program's span in which every scene is played."""
BLOCK = "## Notes\n- block "
"""The context of every turn, followed by the number of its request."""
IDLE_S = 300
"""After this time an adapter abandons an idle turn, by default."""
SCENE_S = 120
"""The time limit of a scene."""


class Refused(Exception):
    """A provider's answer to a prompt that it does not take, as the clients of OpenAI and Anthropic raise it."""

    status_code = 400


class Prompts(list[tuple[str, Any]]):
    """Each prompt of the fake model: the agent's name, and the messages with role and content.

    ``refused`` is a text: the model refuses a prompt that holds it.
    """

    refused = ""

    def append(self, prompt: tuple[str, Any], /) -> None:
        """Keep the prompt, and refuse it if the scene says so."""
        super().append(prompt)
        if self.refused and self.refused in str(prompt[1]):
            raise Refused(f"{self.refused!r} is not allowed")


PROMPTS = Prompts()


type Result = dict[str, Any] | Callable[[], dict[str, Any]] | None
"""What a scene adds to its result; a function is called when all events are on the bus."""


class Bus:
    """A transport that records events and requests, and may hang, fail or return garbage."""

    def __init__(self, way: str = "works") -> None:
        self.way = way
        self.events: list[Event] = []
        self.requests: list[ContextRequest] = []
        self.changed = threading.Condition()
        """Notified of each event, for those who wait for one in another thread."""

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Record the events."""
        await self._trouble()
        first = len(self.events)
        with self.changed:
            self.events += [wire.decode(event.fields) for event in events]
            self.changed.notify_all()
        return [f"0:{first + number}" for number in range(len(events))]

    async def request(self, request: ContextRequest) -> ContextReply:
        """Answer each request with a block of its own."""
        self.requests.append(request)
        await self._trouble()
        if self.way == "garbage":
            return {"text": 7}  # type: ignore[return-value]
        return ContextReply(id=request.id, context_id=f"ctx-{len(self.requests)}", text=f"{BLOCK}{len(self.requests)}")

    async def _trouble(self) -> None:
        if self.way == "hangs":
            await asyncio.Event().wait()
        if self.way == "fails":
            raise RuntimeError("the bus is broken")

    async def aclose(self) -> None:
        """Do nothing."""


def settings_of(bus: Bus, **more: Any) -> dict[str, Any]:
    """Return the settings of an adapter with its own client on the bus.

    The budget of a turn is long where the bus works, so that a slow machine changes nothing, and short where it hangs.
    """
    budget_ms = 10_000 if bus.way == "works" else 30
    return {"client": Client("redis://127.0.0.1:1", transport=bus), "budget_ms": budget_ms, **more}


class AheadClock(SystemClock):
    """The clock of this machine, whose seconds a scene can advance."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return time.monotonic() + self.ahead_s


class Scene:
    """A bus, an adapter that uses it, and a clock that a scene can advance. ``way`` "none": without an adapter."""

    def __init__(self, make: Callable[..., Any], way: str, place: str = "") -> None:
        self.way = way
        self._placed = {"context_place": place} if place else {}
        self.attached = way != "none"
        self.bus = Bus(way)
        self._make = make
        self._adapter: Any = None
        self._events: list[Event] | None = None
        self._clock = AheadClock()

    def adapter(self, **settings: Any) -> Any:
        """Return the adapter of the scene, made at the first call."""
        if self._adapter is None:
            settings["clock"] = self._clock
            self._adapter = self._make(**settings_of(self.bus, **self._placed, **settings))
        return self._adapter

    def wait(self, times: int = 1) -> None:
        """Advance the clock by the time after which an idle turn is abandoned, or several times that."""
        self._clock.ahead_s += IDLE_S * times + 1
        self.adapter().core.tick()

    def stop_recording(self) -> None:
        """Leave out what the adapter emits after this, such as at its end."""
        self.adapter().core.flush()
        self._events = list(self.bus.events)

    def result(self, more: Result) -> dict[str, Any]:
        """Close the adapter, and return what the tests look at."""
        core: Adapter = self.adapter().core
        core.close(30.0 if self.way == "works" else 0.1)
        events = self.bus.events if self._events is None else self._events
        return {
            "events": [{**event.data, "type": event.type, "id": event.id, "chat": event.chatid} for event in events],
            "ids": sorted({(e.appid, e.chatid, e.workflow or "", e.userid or "", e.source) for e in events}),
            "asked": [(request.agent, request.after) for request in self.bus.requests],
            "said": [request.context for request in self.bus.requests],
            "spans": [*{each.traceparent for each in (*events, *self.bus.requests)}],
            "prompts": PROMPTS,
            "stats": {name: getattr(core.stats, name) for name in core.stats.__slots__},
            **((more() if callable(more) else more) or {}),
        }


def outcome(run: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return what ``run`` returns, and what it raises."""
    try:
        return run(), None
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the tests look at it
        return None, f"{type(error).__name__}: {error}".removesuffix(": ")


async def cancel(running: asyncio.Future[Any]) -> str:
    """Cancel a task, and return the name of the error that its caller gets."""
    running.cancel()
    outcomes = await asyncio.gather(running, return_exceptions=True)
    return type(outcomes[0]).__name__


def timed(count: str, turn: Callable[[], Any]) -> dict[str, Any]:
    """Return the milliseconds of each of ``count`` turns."""
    took: list[float] = []
    for _ in range(int(count)):
        started_s = time.perf_counter()
        turn()
        took.append((time.perf_counter() - started_s) * 1000)
    return {"ms": took}


def main(adapter: Callable[..., Any], scenes: dict[str, Any]) -> None:
    """Play the scene that the command line names, with its arguments, and print its result as JSON.

    ``scenes`` are the globals of a program. ``name=value`` is a named argument; ``way=`` says what the bus does,
    ``context_place=`` where the context stands, ``refused=`` which text the model refuses.
    Without a name, each line of the standard input is ``[[name, argument, ...], folder]``: the scene is played in a
    fork of this process, which has imported the runtime already, and writes ``output`` and ``errors`` into the folder.
    The exit code is printed.
    """
    warnings.simplefilter("ignore")
    if len(sys.argv) > 1:
        _play(adapter, scenes, sys.argv[1:])
    gc.freeze()  # else the collector of each fork would copy the pages of the runtime
    for line in sys.stdin:
        command, folder = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(SCENE_S)
            for number, name in enumerate((os.devnull, f"{folder}/output", f"{folder}/errors")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            _play(adapter, scenes, command)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _play(adapter: Callable[..., Any], scenes: dict[str, Any], command: Sequence[str]) -> NoReturn:
    try:
        name, *arguments = (word for word in command if "=" not in word)
        named = dict(word.split("=", 1) for word in command if "=" in word)
        play = scenes[name]
        PROMPTS.refused = named.pop("refused", "")
        scene = Scene(adapter, named.pop("way", "works"), named.pop("context_place", ""))
        with within(TRACE):
            found = play(scene, *arguments, **named)
        print(json.dumps(scene.result(found), default=str), flush=True)
    except BaseException:  # noqa: BLE001 - the process ends here in any case
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # an abandoned stream may leave a thread of the runtime waiting
