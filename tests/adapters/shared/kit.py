"""What the conversations of all runtimes share: a bus that keeps what it is given, and what came of a scene as JSON.

Runs in the environment of a runtime, which has graphweft's client and nothing of the tests' own packages.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from graphweft import Client
from graphweft.adapters.core import Adapter
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, wire

IDS = {"app_id": "shop", "chat_id": "c1", "workflow_name": "Sales", "user_id": "u1"}
"""The ids of the chat of every scene."""
BLOCK = "## Notes\n- block "
"""The context of every turn, with the number of the request behind it."""
SCENE_S = 120
"""The time limit of a scene."""
PROMPTS: list[tuple[str, Any]] = []
"""What the fake model was asked with: the agent's name, and its messages in the runtime's own words."""


class Bus:
    """A transport that keeps what it is given, and may hang, fail or answer garbage."""

    def __init__(self, way: str = "works") -> None:
        self.way = way
        self.events: list[Event] = []
        self.requests: list[ContextRequest] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Keep the events."""
        await self._trouble()
        first = len(self.events)
        self.events += [wire.decode(event.fields) for event in events]
        return [f"0:{first + number}" for number in range(len(events))]

    async def request(self, request: ContextRequest) -> ContextReply:
        """Answer with a block of its own for each request."""
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
        """There is nothing to close."""


def settings_of(bus: Bus, **more: Any) -> dict[str, Any]:
    """Return the settings of an adapter with a client of its own on the bus.

    The budget of a turn is long where the bus works, so that a slow machine changes nothing, and short where it hangs.
    """
    budget_ms = 10_000 if bus.way == "works" else 30
    return {"client": Client("redis://127.0.0.1:1", transport=bus), "budget_ms": budget_ms, **more}


def result(core: Adapter, bus: Bus, **more: Any) -> dict[str, Any]:
    """Return what is to be looked at."""
    return {
        "events": [{"type": event.type, **event.data} for event in bus.events],
        "ids": sorted({(e.appid, e.chatid, e.workflow or "", e.userid or "", e.source) for e in bus.events}),
        "asked": [(request.agent, request.after) for request in bus.requests],
        "prompts": PROMPTS,
        "stats": {name: getattr(core.stats, name) for name in core.stats.__slots__},
        **more,
    }


def play(*scenes: Callable[..., dict[str, Any]]) -> None:
    """Play the scene that the command line names, with its further arguments, and print what came of it as JSON.

    Without a name, each line of the standard input is ``[[name, argument, ...], folder]``: the scene is played in a
    process of its own, which has the runtime imported already and writes ``output`` and ``errors`` into the folder. Its
    exit code is printed.
    """
    warnings.simplefilter("ignore")
    named = {scene.__name__: scene for scene in scenes}
    if len(sys.argv) > 1:
        _play(named, sys.argv[1:])
    for line in sys.stdin:
        command, folder = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(SCENE_S)
            for number, name in enumerate((os.devnull, f"{folder}/output", f"{folder}/errors")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            _play(named, command)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _play(scenes: dict[str, Callable[..., dict[str, Any]]], command: Sequence[str]) -> NoReturn:
    try:
        print(json.dumps(scenes[command[0]](*command[1:]), default=str), flush=True)
    except BaseException:  # noqa: BLE001 - a process ends here, whatever its scene raised
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # a reader that went away may leave a thread of the runtime waiting
