"""``graphweft demo``: imports recorded customer-service runs into a graph and prints context from it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from graphweft import Client
from graphweft_contracts import ContextReply, Event, InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.demo_history import INDENT, change_rules, explain_problem, replay_rules
from graphweft_workers.cli.invocation import Invocation, invocation
from graphweft_workers.cli.options import command
from graphweft_workers.cli.output import say, warn
from graphweft_workers.cli.publishing import bar, lag_bar
from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of_runs
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore
from graphweft_workers.reports.delivery import send, wait_until_applied
from graphweft_workers.reports.short_texts import short
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport

_APP: Final = "airline"
_WORKFLOW: Final = "AirlineSupport"
_AGENT: Final = "AirlineAgent"
_CHAT_ID: Final = "task{task_id}-trial{trial}"
_DATA: Final = Path(".graphweft/demo")
_LOG: Final = "services.log"
"""In the data folder: a worker on a busy machine has warnings that are no part of what the demo shows."""
_EXAMPLE: Final = Path("examples/airline")
"""Beside this package in an installed wheel, and at the root of a checkout."""
_RUNS: Final = Path("data/tau-airline-gpt4o.jsonl.gz")
_APPLY_S: Final = 300.0
_SHOWN_BLOCKS: Final = ("customer", "known_reservations", "frequent_tool_problems")
"""The blocks of the context that fit on a page."""
_CHANGED_BLOCK: Final = "frequent_tool_problems"
"""The block of the context that the changed rule changes."""
_CHAT: Final = "demo"
_WIDTH: Final = 80
_MORE: Final = ", …"
_BUSIEST_USER: Final = (
    "MATCH (u:User)-[:STARTED]->(j:Journey) WITH u, count(j) AS chats RETURN u.id ORDER BY chats DESC, u.id LIMIT 1"
)


@command
async def demo(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder for the data.", show_default=f"{_DATA}, emptied first")
    ] = None,
    example: Annotated[
        Path | None, typer.Option("--example", help="Folder of the airline example.", show_default="the one installed")
    ] = None,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep",
            help="Run on with the console until Ctrl-C.",
            show_default="on a terminal",
        ),
    ] = None,
) -> int | None:
    """Start everything, import 100 recorded runs, and show the graph and the context of an agent's turn.

    Then a rule changes: the demo shows what that changes in history, and which event wrote a node. On a terminal it
    runs on until Ctrl-C, and the last line is the link of the console.
    """
    from graphweft_workers.processes.supervisor import Supervisor, empty_data
    from graphweft_workers.support.logs import set_up_logs

    example = _installed() if example is None else example
    settings = _settings(data, example)
    set_up_logs(settings.log_level, settings.log_format)
    if data is None and _DATA.is_dir():
        empty_data(_DATA)
    log = settings.data / _LOG
    _check_log(log)
    before = _size(log)
    supervisor = Supervisor(settings, log=log)
    loop = asyncio.get_running_loop()
    showing = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: showing.cancel() if showing else None)
    say(f"Starting a server, a worker and a responder on {settings.data}.")
    ready = asyncio.Event()
    running = asyncio.create_task(supervisor.run(ready.set))
    failed = True
    try:
        started = asyncio.create_task(ready.wait())
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # raises the error that stopped it
            return 1
        changed = await _show(settings, example / _RUNS)
        if changed is None:
            return 1
        failed = False
        stays = sys.stdout.isatty() if keep is None else keep
        if stays:
            for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is now the expected end
                loop.add_signal_handler(number, supervisor.stop)
        port = settings.console_port
        steps = next_steps(
            _typed().graphweft, settings.data, changed, console=supervisor.console, port=port, keep=stays
        )
        say("\n".join(steps))
        if stays:
            await running
        return 0
    except asyncio.CancelledError:
        failed = False
        say("stopped")
        return 130
    finally:
        if failed and _size(log) > before:
            warn(f"the logs of the worker and the responder are in {log}")
        supervisor.stop()
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal must not interrupt the shutdown
            loop.add_signal_handler(number, supervisor.stop)
        await asyncio.gather(running, return_exceptions=True)


def _settings(data: Path | None, example: Path) -> Settings:
    """Return the settings of the demo. Raises ``InvalidSettings``."""
    if not (example / _RUNS).is_file():
        raise InvalidSettings(f"{example / _RUNS} does not exist: name a folder with the airline example as --example")
    settings = Settings.load(data=data, rules=example / "workflows", log_level="warning")
    if data is None:
        settings = settings.model_copy(update={"data": _DATA})
    if not settings.embedded or settings.graph != settings.bus:
        raise InvalidSettings("the demo starts its own server: unset GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL")
    return settings


def _check_log(file: Path) -> None:
    """Raise ``InvalidSettings`` for a file to which the services cannot write their log."""
    try:
        if file.exists():
            file.open("ab").close()
    except OSError as error:
        raise InvalidSettings(
            f"the services cannot write their log to {str(file)!r}: {error.strerror}: move that away"
        ) from error


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def _show(settings: Settings, runs: Path) -> Path | None:
    """Import the runs, show what becomes of them, and return the folder of the changed rules.

    None if a command failed, or an event.
    """
    options = ChatImportOptions(app_id=_APP, workflow=_WORKFLOW, agent=_AGENT, chat_id=_CHAT_ID)
    events = list(events_of_runs(read_runs(runs), options))
    typed = _typed()
    # A long path makes the commands hard to read.
    program, first = ("graphweft", f"alias graphweft={typed.graphweft}; ") if typed.is_long else (typed.graphweft, "")
    bus, graph = make_bus(settings), make_graph(settings)
    try:
        await _import(settings, events, bus)
        chats = len({event.chatid for event in events})
        say(f"\n{len(events):,} events of {chats} recorded chats are published and applied, in order:")
        say(_counts(Counter(event.type for event in events)))
        if letters := await letter_count(bus.dead_letters):
            say(f"{counted(letters, 'dead letter')}; `{program} dlq list --data {settings.data}` shows them")
            return None
        await _say_graph(graph)
        user = str((await graph.read(_APP, _BUSIEST_USER, {}, timeout_s=5.0)).rows[0][0])
        reply = await _context(settings, user)
        say(f"\n{_AGENT} gets before a turn with {user} (in part, in {reply.elapsed_ms:.0f} ms):")
        _say_blocks(reply, _SHOWN_BLOCKS, most=3)
        say("\nA rule changes: problems with the same first words become one node.")
        changed = change_rules(settings, settings.rules)
        say(f"$ {first}export GRAPHWEFT_DATA={settings.data}")
        if not await replay_rules(settings, changed, _APP, program):
            return None
        say("In its context now:")
        _say_blocks(await _context(settings, user), (_CHANGED_BLOCK,), most=1)
        say("\nWhich event wrote that problem?")
        return changed if await explain_problem(settings, _APP, program) else None
    finally:
        await graph.aclose()
        await bus.aclose()


async def _import(settings: Settings, events: list[Event], bus: Bus) -> None:
    transport = make_transport(settings)
    try:
        with bar("publishing", len(events)) as advance:
            sent = await send(transport, events, on_progress=advance)
    finally:
        await transport.aclose()
    with lag_bar(len(events)) as lag:
        if not await wait_until_applied(bus, sent.last, timeout_s=_APPLY_S, on_lag=lag):
            raise InvalidSettings(f"not all events were applied within {_APPLY_S:.0f} s")


async def _say_graph(graph: GraphStore) -> None:
    nodes: Counter[str] = Counter()
    async for node in graph.whole.nodes(_APP):
        nodes.update(label for label in node.labels if not label.startswith(INTERNAL_PREFIX))
    relationships: Counter[str] = Counter()
    async for edge in graph.whole.edges(_APP):
        relationships[edge.type] += 1
    say(f"\nThe rules made {nodes.total():,} nodes and {relationships.total():,} relationships of them:")
    say(_counts(nodes))
    say(_counts(relationships))


def _counts(names: Counter[str]) -> str:
    """Return how many there are of the most frequent names, on one line."""
    line = ""
    for name, count in names.most_common():
        part = f", {count:,} {name}" if line else f"{INDENT}{count:,} {name}"
        if len(line) + len(part) > _WIDTH - len(_MORE):
            return line + _MORE
        line += part
    return line


async def _context(settings: Settings, user: str) -> ContextReply:
    """Return the context of the user's agent."""
    async with Client(transport=make_transport(settings), app_id=_APP, workflow=_WORKFLOW, budget_ms=2_000) as client:
        variables = {"user_id": user}
        # A runtime keeps its client, so the second request, with its connections open, shows the cost of a turn.
        await client.context(agent=_AGENT, chat_id=_CHAT, user_id=user, context=variables)
        return await client.context(agent=_AGENT, chat_id=_CHAT, user_id=user, context=variables)


def _say_blocks(reply: ContextReply, names: Sequence[str], *, most: int) -> None:
    """Print the first lines of these blocks. Long lines are cut."""
    width = _WIDTH - len(INDENT)
    for block in reply.blocks:
        if block.name in names:
            value = block.value if isinstance(block.value, str) else json.dumps(block.value)
            lines = value.splitlines()
            more = [f"… {len(lines) - most} more"] if len(lines) > most else []
            for line in (f"## {block.name.replace('_', ' ').title()}", *lines[:most], *more):
                say(f"{INDENT}{short(line, width)}")
    for item in reply.missing:
        say(f"missing {item.name}: {item.reason}: {item.detail}")


def next_steps(program: str, data: Path, rules: Path, *, console: str, port: int, keep: bool) -> list[str]:
    """Return what to say at the end, with the steps in their order. One leads to the console, or says why there is not.

    ``console`` is what the supervisor says of it, and ``port`` comes from the settings.
    """
    query = f"{INDENT}{program} query --data {data} --app {_APP} 'MATCH (t:Tool) RETURN t.name, t.calls'"
    up = f"{program} up --data {data} --rules {rules}"
    stays = f"the data stays in {data}"
    if keep:
        until = f"All of it runs until Ctrl-C; {stays}. Look around in the console, or in another terminal:"
        return ["", until, query, console or up]
    link = f"the console is then on http://127.0.0.1:{port}" if console.startswith("console: ") else console
    ended = f"Nothing runs any more; {stays}. To look around, start it again, and use another terminal:"
    return ["", ended, f"{INDENT}{up}" + (f"    # {link}" if link else ""), query]


def _installed() -> Path:
    package = Path(__file__).parents[1]
    return next((found for root in (package, package.parents[1]) if (found := root / _EXAMPLE).is_dir()), _EXAMPLE)


def _typed() -> Invocation:
    """Return what the user types to run a command."""
    return invocation(sys.argv[0], sys.executable, here=Path.cwd(), folder=Path.cwd())
