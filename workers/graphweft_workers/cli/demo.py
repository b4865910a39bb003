"""``graphweft demo``: imports recorded customer-service runs into a graph and prints context from it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from graphweft import Client
from graphweft_contracts import Event, InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.delivery import send, wait_until_applied
from graphweft_workers.cli.demo_history import change_rules, explain_problem
from graphweft_workers.cli.invocation import invocation
from graphweft_workers.cli.options import command
from graphweft_workers.cli.output import print_table, say, stdout, warn
from graphweft_workers.cli.publishing import bar
from graphweft_workers.cli.run import Role
from graphweft_workers.engine.digest import read_digest
from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ImportOptions, events_of_runs
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore
from graphweft_workers.roles.connections import make_bus, make_graph, make_transport
from graphweft_workers.roles.settings import Settings

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
_LOAD_APP: Final = "airline-load"
_COPIES: Final = 5
"""How often the runs are imported to measure the rate: 10,000 events, so that the start of the import counts little."""
_CHANGED_BLOCK: Final = "frequent_tool_problems"
"""The block of the context that the changed rule changes."""
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
) -> int | None:
    """Start everything, import 100 recorded runs, and show the graph and the context of an agent's turn.

    Then a rule changes: the demo shows what that changes in history, and which event wrote a node.
    """
    from graphweft_workers.logs import set_up_logs
    from graphweft_workers.roles.supervisor import Supervisor, empty_data

    example = _installed() if example is None else example
    if not (example / _RUNS).is_file():
        raise InvalidSettings(f"{example / _RUNS} does not exist: name a folder with the airline example as --example")
    settings = Settings.load(data=data, rules=example / "workflows", log_level="warning")
    if data is None:
        settings = settings.model_copy(update={"data": _DATA})
    if not settings.embedded or settings.graph != settings.bus:
        raise InvalidSettings("the demo starts its own server: unset GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL")
    set_up_logs(settings.log_level, settings.log_format)
    if data is None and _DATA.is_dir():
        empty_data(_DATA)
    log = settings.data / _LOG
    _check_log(log)
    before = _size(log)
    supervisor = Supervisor(settings, log=log)
    loop = asyncio.get_running_loop()
    shown = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: shown.cancel() if shown else None)
    ready = asyncio.Event()
    running = asyncio.create_task(supervisor.run(ready.set))
    failed = True
    try:
        started = asyncio.create_task(ready.wait())
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # raises the error that stopped it
            return 1
        code = await _show(settings, example / _RUNS)
        failed = bool(code)
        return code
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


async def _show(settings: Settings, runs: Path) -> int:
    options = ImportOptions(app_id=_APP, workflow=_WORKFLOW, agent=_AGENT, chat_id=_CHAT_ID)
    events = list(events_of_runs(read_runs(runs), options))
    bus, graph = make_bus(settings), make_graph(settings)
    try:
        await _import(settings, events, bus)
        await _tables(events, graph)
        await _measure(settings, events, bus)
        letters = await bus.dead_letters.count()
        if letters:
            say(f"{counted(letters, 'dead letter')}; `graphweft dlq list --data {settings.data}` shows them")
        await _context(settings, graph)
        command_name, aliases = _command_name()
        for each in aliases:
            say(f"\n$ {each}")
        changed = await change_rules(settings, settings.rules, _APP, command_name)
        if changed is None:
            return 1
        await _context(settings, graph, only=_CHANGED_BLOCK)
        say("")
        if not await explain_problem(settings, _APP, command_name):
            return 1
        say(f"The data stays in {settings.data}. Look around:")
        for line in [*aliases, *(f"{command_name} {each}" for each in _look_around(settings, changed))]:
            say(f"  {line}")
        return 1 if letters else 0
    finally:
        await graph.aclose()
        await bus.aclose()


async def _import(settings: Settings, events: list[Event], bus: Bus) -> float:
    transport = make_transport(settings)
    began = time.perf_counter()
    try:
        with bar("publishing", len(events)) as advance:
            sent = await send(transport, events, on_progress=advance)
    finally:
        await transport.aclose()
    with bar("applying", len(events)) as advance:
        left = len(events)

        def lag(count: int) -> None:
            nonlocal left
            advance(max(0, left - count))
            left = min(left, count)

        if not await wait_until_applied(bus, sent.last, timeout_s=_APPLY_S, on_lag=lag):
            raise InvalidSettings(f"not all events were applied within {_APPLY_S:.0f} s")
    return time.perf_counter() - began


async def _measure(settings: Settings, events: list[Event], bus: Bus) -> None:
    """Import the runs several times, as other chats of another app, and print the rate."""
    many = [
        event.model_copy(
            update={"appid": _LOAD_APP, "id": f"{number}/{event.id}", "chatid": f"{event.chatid}/{number}"}
        )
        for number in range(_COPIES)
        for event in events
    ]
    chats = len({event.chatid for event in many})
    seconds = await _import(settings, many, bus)
    say(
        f"{len(many):,} events of {chats:,} chats published and applied in {seconds:.1f} s: {len(many) / seconds:,.0f} "
        "events/s, in order, and on disk\n"
    )


async def _tables(events: list[Event], graph: GraphStore) -> None:
    nodes: Counter[str] = Counter()
    async for node in graph.nodes(_APP):
        nodes.update(label for label in node.labels if not label.startswith(INTERNAL_PREFIX))
    relationships: Counter[str] = Counter()
    async for edge in graph.edges(_APP):
        relationships[edge.type] += 1
    by_type = Counter(event.type for event in events)
    print_table(("event", "count"), [*sorted(by_type.items()), ("all", len(events))])
    say("")
    print_table(("nodes", "count"), sorted(nodes.items()))
    print_table(("relationships", "count"), sorted(relationships.items()))
    say(f"digest {(await read_digest(graph, _APP)).sha256}\n")


async def _context(settings: Settings, graph: GraphStore, *, only: str | None = None) -> None:
    """Print the context of the busiest user's agent, or one block of it."""
    from rich.panel import Panel
    from rich.text import Text

    user = str((await graph.read(_APP, _BUSIEST_USER, {}, timeout_s=5.0)).rows[0][0])
    async with Client(transport=make_transport(settings), app_id=_APP, workflow=_WORKFLOW, budget_ms=2_000) as client:
        variables = {"user_id": user}
        # A runtime keeps its client, so the second request, with its connections open, shows the cost of a turn.
        await client.context(agent=_AGENT, chat_id="demo", user_id=user, context=variables)
        reply = await client.context(agent=_AGENT, chat_id="demo", user_id=user, context=variables)
    title = f"the context of {_AGENT} for its next turn with {user}" if only is None else f"in its context now: {only}"
    text = reply.text if only is None else "".join(str(each.value) for each in reply.blocks if each.name == only)
    stdout().print(Panel(Text(text), title=title, title_align="left"))
    for item in reply.missing:
        say(f"missing {item.name}: {item.reason}: {item.detail}")
    if only is None:
        say(f"{counted(len(reply.blocks), 'block')} in {reply.elapsed_ms:.1f} ms")


def _look_around(settings: Settings, rules: Path) -> list[str]:
    """Return what to run next, without the name of the program."""
    page = "   # prints the address of the console" if "console" in get_args(Role) else ""
    return [
        f"up --data {settings.data} --rules {rules}{page}",
        f"query --data {settings.data} --app {_APP} 'MATCH (t:Tool) RETURN t.name, t.calls'",
    ]


def _installed() -> Path:
    package = Path(__file__).parents[1]
    return next((found for root in (package, package.parents[1]) if (found := root / _EXAMPLE).is_dir()), _EXAMPLE)


def _command_name() -> tuple[str, list[str]]:
    """Return what the user types to run a command, and what to type first if that is short for a long path."""
    typed = invocation(sys.argv[0], sys.executable, here=Path.cwd(), folder=Path.cwd())
    return ("graphweft", [f"alias graphweft={typed.graphweft}"]) if typed.is_long else (typed.graphweft, [])
