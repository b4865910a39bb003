"""Conversations of the real Agent Zero with a scripted model, run by a Python that has what Agent Zero imports.

``python tests/adapters/agent_zero/scenes.py FOLDER [NAME …]`` works in a copy of Agent Zero that it may write into, and
prints what came of each scene, or of all, as one JSON object by name, in its last line. ``--ask BUDGET_MS TEXT`` in the
place of names is one turn with the plugin as it is installed, whose bus is that of the environment.

What is Agent Zero's own: the agent's loop, its thread, extensions, prompts, history, secrets, retries, subordinates and
the memory plugin's recall. In the place of the memory's database, which needs a model, is one that finds the same texts
each time.
"""

import asyncio
import contextlib
import enum
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kit import Bus, settings_of

from graphweft.adapters import agent_zero
from graphweft.adapters.agent_zero.installation import install, plugin_files
from graphweft.adapters.core import Adapter

WEATHER = """\
import asyncio
from agent import UserMessage
from helpers.errors import RepairableException
from helpers.tool import Response, Tool


class Weather(Tool):
    async def execute(self, city="", **kwargs):
        match city:
            case "Atlantis":
                raise RuntimeError("no such city")
            case "Osl":
                raise RepairableException("did you mean Oslo?")
            case "Rome":
                self.agent.intervention = UserMessage("Look at Oslo.", [])
            case "Paris":
                self.agent.set_data("say_later", UserMessage("What does Ben own?", []))
            case "nowhere":
                self.agent.context.waits.set()
                await asyncio.Event().wait()
        return Response(message=f"rain in {city}", break_loop=False)
"""
LOGIN = """\
from helpers.tool import Response, Tool


class Login(Tool):
    async def execute(self, key="", **kwargs):
        self.agent.set_data("key", key)
        return Response(message=f"logged in with {key}", break_loop=False)
"""
SAY_LATER = """\
from helpers.extension import Extension


class SayLater(Extension):
    def execute(self, **kwargs):
        self.agent.intervention = self.agent.intervention or self.agent.get_data("say_later")
        self.agent.set_data("say_later", None)
"""
MEMORIES = {"main": ["Ann likes tea", "Checkout is slow"], "solutions": ["Restart it"]}


def call(name: str, **args: Any) -> str:
    return json.dumps({"thoughts": [], "tool_name": name, "tool_args": args})


@dataclass(kw_only=True)
class Scene:
    """What the user says, one turn each, what the model says, and how the bus answers."""

    asks: Sequence[str] = ("What does Ann own?",)
    script: Sequence[str | Exception]
    bus: str = "works"
    """What ``kit.Bus`` does, or ``broken``: nothing of the plugin's core works."""
    enabled: str = "true"
    package: bool = True
    """Whether Agent Zero's Python has graphweft."""
    kills: bool = False
    """Whether the user stops the first turn, while its tool is at work."""


RAINS = call("response", text="It rains.")
SCENES = {
    "works": Scene(script=[call("weather", city="Oslo"), RAINS]),
    "two_turns": Scene(asks=("What does Ann own?", "And Ben?"), script=[RAINS, call("response", text="Nothing.")]),
    "tool_fails": Scene(script=[call("weather", city="Atlantis"), call("weather", city="Atlantis", again=1)]),
    "tool_is_repaired": Scene(script=[call("weather", city="Osl"), RAINS]),
    "model_fails": Scene(script=[ConnectionError("no model"), ConnectionError("no model")]),
    "model_recovers": Scene(script=[ConnectionError("no model"), RAINS]),
    "no_such_tool": Scene(script=[call("whether", city="Oslo"), "I do not know.", RAINS]),
    "subordinate": Scene(
        script=[
            call("call_subordinate", message="Look out of the window.", reset="true"),
            call("response", text="It rains here."),
            RAINS,
        ]
    ),
    "interrupted": Scene(script=[call("weather", city="Rome"), RAINS]),
    "interrupted_between_steps": Scene(script=[call("weather", city="Paris"), RAINS]),
    "stopped": Scene(asks=("Wait.", "What does Ann own?"), script=[call("weather", city="nowhere"), RAINS], kills=True),
    "secret": Scene(script=[call("login", key="§§secret(KEY)"), RAINS]),
    "bus_hangs": Scene(script=[call("weather", city="Oslo"), RAINS], bus="hangs"),
    "bus_fails": Scene(script=[call("weather", city="Oslo"), RAINS], bus="fails"),
    "plugin_fails": Scene(script=[call("weather", city="Osl"), RAINS], bus="broken"),
    "off": Scene(script=[call("weather", city="Osl"), RAINS], enabled="false"),
    "no_package": Scene(script=[call("weather", city="Osl"), RAINS], package=False),
}


class Broken:
    """An adapter core of which nothing works."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is broken")


def prepare(root: Path, settings: dict[str, Any]) -> None:
    """Write what the scenes need, and stand in for packages of gigabytes that they do not use."""
    import yaml

    install(root)
    memory = yaml.safe_load((root / "plugins/_memory/default_config.yaml").read_text())
    files = {
        "plugins/graphweft/config.json": json.dumps(settings),
        "plugins/_memory/config.json": json.dumps({**memory, "memory_memorize_enabled": False}),
        "secrets.env": "KEY=hunter2\n",
        "tools/weather.py": WEATHER,
        "tools/login.py": LOGIN,
        "extensions/python/message_loop_end/_95_say_later.py": SAY_LATER,
    }
    for name, text in files.items():
        path = root / "usr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, class_name in {"whisper": "Whisper", "sentence_transformers": "SentenceTransformer"}.items():
        module = ModuleType(name)
        setattr(module, class_name, object)
        sys.modules.setdefault(name, module)


def database(root: Path) -> ModuleType:
    """Return the module of the memory's database; Agent Zero's recall asks it."""

    class Memory:
        class Area(enum.Enum):
            MAIN = "main"
            FRAGMENTS = "fragments"
            SOLUTIONS = "solutions"

        @staticmethod
        async def get(agent: Any) -> Any:
            return Memory()

        async def search_similarity_threshold(self, *, filter: str, **_: Any) -> list[Any]:
            kind = "main" if "'main'" in filter else "solutions"
            return [SimpleNamespace(page_content=text) for text in MEMORIES[kind]]

    module = ModuleType("plugins._memory.helpers.memory")
    module.Memory = Memory  # type: ignore[attr-defined]
    module.get_memory_subdir_abs = lambda agent: str(root / "usr/memory/default")  # type: ignore[attr-defined]
    return module


def points(seen: list[Any]) -> Callable[..., Any]:
    """Return Agent Zero's function that calls extensions, with a note of each call at a point of the plugin's."""
    from helpers import extension

    folder = "extensions/python/"
    ours = {str(Path(name).parent).removeprefix(folder) for name in plugin_files() if name.startswith(folder)}
    call_extensions = extension.call_extensions_async

    async def noted(point: str, agent: Any = None, **named: Any) -> None:
        if point in ours:
            seen.append([point, getattr(agent, "agent_name", None), sorted(named)])
        await call_extensions(point, agent, **named)

    return noted


class AgentZero:
    """Agent Zero as a process has it."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        os.chdir(root)
        sys.path.insert(0, str(root))
        prepare(root, settings)
        from helpers import extension, runtime

        runtime.args["dockerized"] = True  # otherwise it asks for the password of a development server
        import plugins._memory.helpers as memory_helpers

        memory_helpers.memory = sys.modules["plugins._memory.helpers.memory"] = database(root)
        import agent as zero

        self.zero = zero
        self.points: list[Any] = []
        extension.call_extensions_async = points(self.points)
        self.script: list[Any] = []
        self.prompts: list[dict[str, Any]] = []
        owner = self

        class Model:
            model_name = "scripted"

            def __init__(self, agent: Any) -> None:
                self.agent = agent

            async def unified_call(self, messages: Any = None, **_: Any) -> tuple[str, str]:
                if messages is None:  # the utility model
                    return "", ""
                owner.prompts.append(shown(self.agent.agent_name, messages))
                said = owner.script.pop(0)
                if isinstance(said, Exception):
                    raise said
                return said, ""

        def model_of(agent: Any) -> Model:
            return Model(agent)

        zero.Agent.get_chat_model = zero.Agent.get_utility_model = model_of

    def chat(self, script: Sequence[Any]) -> Any:
        self.script[:] = script
        self.prompts.clear()
        self.points.clear()
        context = self.zero.AgentContext(self.zero.AgentConfig(mcp_servers="", profile="agent0"))
        context.waits = threading.Event()
        return context

    def say(self, context: Any, text: str) -> dict[str, Any]:
        """Return the answer, or the kind of the error."""
        try:
            return {"answer": context.communicate(self.zero.UserMessage(text, [])).result_sync(60)}
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return {"error": type(error).__name__}

    def kill(self, context: Any, text: str) -> dict[str, Any]:
        """Say something, stop the agent while its tool waits, and see its task end."""
        task = context.communicate(self.zero.UserMessage(text, []))
        assert context.waits.wait(60)
        context.kill_process()
        asyncio.run_coroutine_threadsafe(nothing(), task.event_loop_thread.loop).result(60)
        return {"killed": task.is_ready()}


async def nothing() -> None:
    """Pass through an event loop, behind what it has begun."""


def shown(agent: str, messages: Any) -> dict[str, Any]:
    """Return what the model reads: the extras that Agent Zero makes its last message of, and the rest."""
    last = str(messages[-1].content)
    rest, _, extras = last.rpartition("[EXTRAS]\n")
    return {
        "agent": agent,
        "extras": json.loads(extras),
        "rest": "\n".join([*(str(message.content) for message in messages[:-1]), rest]),
        "role": messages[-1].type,
    }


def play(zero: AgentZero, scene: Scene) -> dict[str, Any]:
    bus = Bus(scene.bus)
    threads = threading.active_count()
    core: Any = None
    if scene.bus == "broken":
        core = Broken()
    elif scene.enabled == "true":
        core = Adapter(**settings_of(bus, source="/graphweft/agent-zero"))
    plugin = agent_zero.AgentZeroPlugin(core)
    os.environ["GRAPHRAG_ENABLED"] = scene.enabled
    printed = io.StringIO()
    with installed(plugin, scene.package), contextlib.redirect_stdout(printed):
        context = zero.chat(scene.script)
        first = zero.kill if scene.kills else zero.say
        turns = [first(context, scene.asks[0]), *(zero.say(context, text) for text in scene.asks[1:])]
        if isinstance(core, Adapter):
            core.flush(0.1 if scene.bus in {"fails", "hangs"} else 10.0)
            core.close(0.1)
    agents = [context.agent0, *filter(None, [context.agent0.get_data("_subordinate")])]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in printed.getvalue().splitlines()]
    return {
        "turns": turns,
        "prompts": list(zero.prompts),
        "unsaid": len(zero.script),
        "history": "\n".join(agent.history.output_text() for agent in agents),
        "events": [{"type": event.type, **event.data} for event in bus.events if event.type != "memory.add"],
        "ids": sorted({(e.appid, e.chatid == context.id, e.workflow or "", e.userid or "", e.source)
                       for e in bus.events}),
        "asked": [{**request.context, "agent": request.agent} for request in bus.requests],
        "points": list(zero.points),
        "key": context.agent0.get_data("key"),
        "core": plugin.core is not None,
        "threads": threading.active_count() - threads,
        "printed": [line for line in lines if line.startswith(("GRAPHRAG", "graph"))],
        "errors": core.stats.errors if isinstance(core, Adapter) else None,
    }  # fmt: skip


@contextlib.contextmanager
def installed(plugin: agent_zero.AgentZeroPlugin, package: bool) -> Iterator[None]:
    """Let Agent Zero import its extensions anew, with this plugin, or without the package that it is in."""
    from helpers import cache

    real = agent_zero.plugin
    agent_zero.plugin = plugin  # type: ignore[misc]
    name = "graphweft.adapters.agent_zero"
    sys.modules[name] = agent_zero if package else None  # type: ignore[assignment]
    cache.clear("*(extensions)*")
    try:
        yield
    finally:
        sys.modules[name] = agent_zero
        agent_zero.plugin = real  # type: ignore[misc]


def ask(zero: AgentZero, text: str) -> dict[str, Any]:
    """Take one turn in a chat of its own."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        turn = zero.say(zero.chat([RAINS]), text)
        agent_zero.plugin.close()
    return {**turn, "prompts": zero.prompts, "printed": printed.getvalue()}


def main(folder: str, *names: str) -> None:
    root = Path(folder).resolve()
    found: dict[str, Any]
    if names[:1] == ("--ask",):
        found = ask(AgentZero(root, {"budget_ms": int(names[1])}), names[2])
    else:
        zero = AgentZero(root, {"app_id": "shop", "workflow": "Zero", "user_id": "u1"})
        found = {name: play(zero, SCENES[name]) for name in names or SCENES}
    print("\n" + json.dumps(found, default=str), flush=True)
    os._exit(0)  # threads of Agent Zero


if __name__ == "__main__":
    main(*sys.argv[1:])
