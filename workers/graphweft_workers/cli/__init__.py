"""The ``graphweft`` command. It imports the module of a command only when you name the command, so each starts fast."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final, override

import typer
from typer.core import TyperGroup

__all__ = ("app", "main")

_GROUPS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "token": ("Tokens for the HTTP gateway.", {"new": "tokens:token_new", "list": "tokens:token_list"}),
    "key": ("Keys that sign events and requests.", {"new": "keys:key_new"}),
    "import": ("Publish recorded runs of other tools as events.", {"openai-chat": "emit:import_openai_chat"}),
    "memory": (
        "Memories of agents: add, search, list, forget, erase.",
        {name: f"memory:memory_{name}" for name in ("add", "search", "list", "forget", "erase")},
    ),
    "dlq": (
        "Dead letters: events and mutations that could not be applied.",
        {name: f"dead_letters:dlq_{name}" for name in ("list", "show", "retry", "drop", "skip")},
    ),
    "rules": (
        "Rule sets in the log: make them active, list, compare. The JSON Schema of rule files.",
        {
            **{name: f"rules:rules_{name}" for name in ("push", "list", "show", "diff", "rollback", "ignore")},
            "schema": "rules_schema:rules_schema",
        },
    ),
    "events": (
        "Events on the bus: follow them, show one, and why it has no effect.",
        {"tail": "events_tail:events_tail", "show": "events:events_show", "why": "events:events_why"},
    ),
    "archive": (
        "The archive of the log: copy what is on the bus now, check it.",
        {name: f"archive:archive_{name}" for name in ("now", "verify")},
    ),
    "agent-zero": (
        "Install or remove the plugin for Agent Zero.",
        {name: f"agent_zero:agent_zero_{name}" for name in ("install", "uninstall")},
    ),
}
_COMMANDS: Final[Mapping[str, str | None]] = {
    "init": "init:init",
    "up": "run:up",
    "run": "run:run",
    "token": None,
    "key": None,
    "acl": "acl:acl",
    "emit": "emit:emit",
    "import": None,
    "context": "context:context",
    "query": "graph:query",
    "digest": "graph:digest",
    "rebuild": "rebuild:rebuild",
    "rollback": "rollback:rollback",
    "diff": "diff:diff",
    "why": "why:why",
    "archive": None,
    "trim": "archive:trim_bus",
    "erase": "erase:erase",
    "export": "export:export",
    "restore": "restore:restore",
    "memory": None,
    "status": "status:status",
    "events": None,
    "coverage": "coverage:coverage",
    "order": "order:order",
    "dlq": None,
    "rules": None,
    "agent-zero": None,
    "lint": "checks:lint",
    "try": "try_rules:try_rules",
    "test": "rule_tests:rule_tests",
    "doctor": "checks:doctor",
    "demo": "demo:demo",
}
"""Module and function of each command, in the order of ``--help``; None for a group."""


def _loading(commands: Mapping[str, str | None]) -> type[TyperGroup]:
    """Return a group that imports a command on first use."""

    class Loading(TyperGroup):
        @override
        def list_commands(self, ctx: Any) -> list[str]:
            return [*commands]

        @override
        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            # An unknown name is compared with the names of all commands, to suggest the nearest one.
            for name in (cmd_name,) if cmd_name in commands else commands:
                place = commands[name]
                if place is not None and name not in self.commands:
                    self.add_command(_load(name, place), name)
            return super().get_command(ctx, cmd_name)

    return Loading


def _load(name: str, place: str) -> Any:
    module, _, function = place.partition(":")
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(import_module(f"{__name__}.{module}"), function))
    return typer.main.get_command(single)


app = typer.Typer(
    name="graphweft",
    cls=_loading(_COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    help="Event-driven graph memory for agents.",
)
for _name, (_help, _commands) in _GROUPS.items():
    app.add_typer(typer.Typer(cls=_loading(_commands), no_args_is_help=True, help=_help), name=_name)


def _version(given: bool) -> None:
    if given:
        from importlib import metadata

        sys.stdout.write(f"graphweft {metadata.version('graphweft')}\n")
        raise typer.Exit


@app.callback()
def _main(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line."""
    app()
