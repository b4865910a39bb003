"""What of Agent Zero its extensions see: folders, order, kinds of calls. The real one is no package.

``make_root`` makes a folder with the files by which it is known; ``Agent`` walks through the points of a monologue in
the order of Agent Zero 1.7, with extensions read from that folder, and with a memory as its plugin ``_memory`` has it.
``test_agent_zero_runtime.py`` compares its points with those of Agent Zero's own code, where that is to be had.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.services.waiting import turns

__all__ = ("AGENT_ZERO_POINTS", "Agent", "Extension", "HandledError", "Tool", "make_root", "running")

AGENT_ZERO_POINTS = (
    "monologue_start",
    "monologue_end",
    "message_loop_prompts_after",
    "chat_model_call_before",
    "chat_model_call_after",
    "tool_execute_before",
    "tool_execute_after",
    "_functions/agent/Agent/handle_exception/end",
)
"""The points at which the plugin has extensions."""

_MEMORIES = "# Memories on the topic\n- they might not be relevant\n\n{{memories}}"
_SOLUTIONS = "# Solutions from the past\n\n{{solutions}}"


class HandledError(Exception):
    """What Agent Zero raises in the place of an error that it has reported."""


class InterventionError(Exception):
    """The user has said something while the agent was at work."""


class Extension:
    def __init__(self, agent: Any, **kwargs: Any) -> None:
        self.agent = agent
        self.kwargs = kwargs


@dataclass
class Tool:
    """What the model asks for: a tool, its arguments, and what comes of it, or an error that is raised."""

    name: str
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    gives: Any = ""


def make_root(folder: Path) -> Path:
    """Make the files of an Agent Zero that is not started."""
    for name in ("agent.py", "helpers/extension.py", "helpers/plugins.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


@contextmanager
def running(root: Path, monkeypatch: pytest.MonkeyPatch, printed: list[str], **settings: Any) -> Iterator[None]:
    """Let extensions import what they import inside Agent Zero; ``settings`` are the plugin's."""
    helpers = {
        "helpers": {},
        "helpers.extension": {"Extension": Extension},
        "helpers.plugins": {"get_plugin_config": lambda name, agent: settings},
        "helpers.print_style": {"PrintStyle": SimpleNamespace(standard=printed.append)},
    }
    with monkeypatch.context() as patch:
        for name, values in helpers.items():
            module = ModuleType(name)
            module.__dict__.update(values)
            patch.setitem(sys.modules, name, module)
        yield


class Agent:
    """One agent of a chat. ``script`` has what its model says: a tool, or an error; ``recalls`` what memory finds.

    ``retries``: how many errors of a monologue are made good by one more step; Agent Zero itself has one.
    """

    def __init__(
        self,
        root: Path,
        script: Sequence[Tool | BaseException],
        *,
        recalls: tuple[str, str] = ("", ""),
        name: str = "A0",
        retries: int = 0,
    ) -> None:
        self.root, self.script, self.recalls = root, list(script), recalls
        self.agent_name, self.retries = name, retries
        self.config = SimpleNamespace(profile="agent0")
        self.context = SimpleNamespace(id="chat-1")
        self.alive = True
        """Whether the task lives: extensions at the end of a monologue are called for living ones only."""
        self.interventions: dict[str, str] = {}
        """What the user says once while the agent is at work: in a ``tool``, ``after`` a tool, or ``between`` steps."""
        self.points: list[list[Any]] = []
        """The points at which extensions were called: point, agent, names of the arguments."""
        self.prompts: list[OrderedDict[str, Any]] = []
        """The extras of each model call."""
        self.others: dict[str, str] = {}
        """What extensions of others keep in ``extras_persistent``."""
        self.loop_data: Any = None

    def parse_prompt(self, file: str, **values: Any) -> str:
        own = self.root / "usr/plugins/graphweft/prompts" / file
        known = {"agent.system.memories.md": _MEMORIES, "agent.system.solutions.md": _SOLUTIONS}
        text = known.get(file) or own.read_text("utf-8")
        for name, value in values.items():
            text = text.replace("{{" + name + "}}", str(value))
        assert "{{" not in text, "Agent Zero would carry this out"
        return text

    async def monologue(self, said: str) -> str:
        """Work until there is an answer."""
        self.last_user_message = _message(said)
        while True:
            try:
                self.loop_data = SimpleNamespace(
                    user_message=self.last_user_message,
                    iteration=-1,
                    extras_persistent=OrderedDict(),
                    extras_temporary=OrderedDict(),
                )
                await self._call("monologue_start", loop_data=self.loop_data)
                while True:
                    self.loop_data.iteration += 1
                    if self.loop_data.iteration > 0:
                        self._intervene("between")
                    try:
                        if (answer := await self._step()) is not None:
                            return answer
                    except Exception as error:  # noqa: BLE001 - as Agent Zero does
                        await self._handle("message_loop", error)
            except Exception as error:  # noqa: BLE001 - as Agent Zero does
                await self._handle("monologue", error)
            finally:
                if self.alive:
                    await self._call("monologue_end", loop_data=self.loop_data)

    def _intervene(self, place: str) -> None:
        if place in self.interventions:
            self.last_user_message = _message(self.interventions.pop(place))
            raise InterventionError

    async def _step(self) -> str | None:
        data = self.loop_data
        await self._call("message_loop_prompts_after", loop_data=data)
        self.prompts.append(OrderedDict({**data.extras_persistent, **data.extras_temporary}))
        data.extras_temporary.clear()
        call_data = {"model": SimpleNamespace(model_name="scripted"), "messages": []}
        await self._call("chat_model_call_before", call_data=call_data)
        said = self.script.pop(0)
        if isinstance(said, BaseException):
            raise said
        await self._call("chat_model_call_after", call_data=call_data, response="", reasoning="")
        args = dict(said.args)
        await self._call("tool_execute_before", tool_args=args, tool_name=said.name)
        gives = await said.gives(args) if callable(said.gives) else said.gives
        if isinstance(gives, BaseException):
            raise gives
        self._intervene("tool")
        response = SimpleNamespace(message=gives, break_loop=said.name == "response")
        await self._call("tool_execute_after", response=response, tool_name=said.name)
        self._intervene("after")
        return str(response.message) if response.break_loop else None

    async def _handle(self, location: str, error: Exception) -> None:
        """The function is an extension point of its own: what stands in ``exception`` at the end is raised."""
        data: dict[str, Any] = {"args": (self, location, error), "kwargs": {}, "result": None, "exception": error}
        await self._call("_functions/agent/Agent/handle_exception/end", data=data)
        if (left := data["exception"]) is not None:
            raise left

    async def _call(self, point: str, **named: Any) -> None:
        assert point in AGENT_ZERO_POINTS
        self.points.append([point, self.agent_name, sorted(named)])
        found: dict[str, Callable[..., Any]] = dict(self._own(point))
        for path in (self.root / "usr/plugins").glob(f"*/extensions/python/{point}/*.py"):
            found.setdefault(path.stem, _extension_of(path))
        for _, extension in sorted(found.items()):
            done = extension(self).execute(**named)
            if inspect.isawaitable(done):
                await done

    def _own(self, point: str) -> dict[str, Callable[..., Any]]:
        """Agent Zero's own extensions, as far as ours have to do with them."""
        steps: dict[str, dict[str, Callable[..., Any]]] = {
            "message_loop_prompts_after": {
                "_50_recall_memories": self._recall,
                "_60_include_current_datetime": self._date,
                "_91_recall_wait": self._wait,
            },
            "tool_execute_before": {"_10_unmask_secrets": self._unmask},
            "tool_execute_after": {"_10_mask_secrets": self._mask},
            "_functions/agent/Agent/handle_exception/end": {
                "_40_handle_intervention_exception": self._forgive,
                "_50_handle_repairable_exception": self._repair,
                "_80_retry_critical_exception": self._retry,
                "_90_handle_critical_exception": self._report,
            },
        }
        return {
            name: lambda agent, step=step: SimpleNamespace(execute=step) for name, step in steps.get(point, {}).items()
        }

    def _recall(self, loop_data: Any) -> None:
        async def later() -> None:
            loop_data.extras_persistent.pop("memories", None)
            loop_data.extras_persistent.pop("solutions", None)
            await turns(3)  # others come in between
            memories, solutions = self.recalls
            if memories:
                text = self.parse_prompt("agent.system.memories.md", memories=memories)
                loop_data.extras_persistent["memories"] = text
            if solutions:
                text = self.parse_prompt("agent.system.solutions.md", solutions=solutions)
                loop_data.extras_persistent["solutions"] = text

        self._task = asyncio.create_task(later())

    async def _wait(self, loop_data: Any) -> None:
        await self._task

    def _date(self, loop_data: Any) -> None:
        loop_data.extras_temporary["current_datetime"] = "today"
        loop_data.extras_persistent.update(self.others)

    def _unmask(self, tool_args: dict[str, Any], tool_name: str) -> None:
        for name, value in tool_args.items():
            tool_args[name] = str(value).replace("§§secret(KEY)", "hunter2")

    def _mask(self, response: Any, tool_name: str) -> None:
        response.message = response.message.replace("hunter2", "§§secret(KEY)")

    def _forgive(self, data: dict[str, Any]) -> None:
        if isinstance(data["exception"], InterventionError):
            data["exception"] = None

    def _repair(self, data: dict[str, Any]) -> None:
        """``LookupError`` is this one's RepairableException: the model is told, and goes on."""
        if isinstance(data["exception"], LookupError):
            data["exception"] = None

    def _retry(self, data: dict[str, Any]) -> None:
        if data["exception"] is not None and not isinstance(data["exception"], HandledError) and self.retries:
            self.retries -= 1
            data["exception"] = None

    def _report(self, data: dict[str, Any]) -> None:
        if data["exception"] is not None and not isinstance(data["exception"], HandledError):
            data["exception"] = HandledError(data["exception"])


def _message(said: str) -> SimpleNamespace:
    return SimpleNamespace(content={"user_message": said}, output_text=lambda: f"user: {json.dumps(said)}")


def _extension_of(path: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [found] = [one for one in vars(module).values() if isinstance(one, type) and one is not Extension]
    assert issubclass(found, Extension)
    return found
