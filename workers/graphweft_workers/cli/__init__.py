"""The ``graphweft`` command. Each command's module is imported when the command is named, so that each starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Annotated, Any, Final, override

import typer
from typer.core import TyperGroup

from graphweft_workers.cli.output import say

__all__ = ("app", "main")

_GROUPS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "token": ("Tokens of the HTTP gateway.", {"new": "services:token_new"}),
    "import": ("Publish recorded runs of other tools as events.", {"openai-chat": "publish:import_openai_chat"}),
    "memory": (
        "Memories of agents: remember, find, list, forget, erase.",
        {name: f"memory:memory_{name}" for name in ("add", "search", "list", "forget", "erase")},
    ),
    "dlq": (
        "Dead letters: events and mutations that could not be applied.",
        {name: f"letters:dlq_{name}" for name in ("list", "show", "retry", "drop", "skip")},
    ),
    "agent-zero": (
        "The plugin for Agent Zero: put it there, take it away.",
        {name: f"agent_zero:agent_zero_{name}" for name in ("install", "uninstall")},
    ),
}
_COMMANDS: Final[Mapping[str, str | None]] = {
    "up": "services:up",
    "run": "services:run",
    "token": None,
    "emit": "publish:emit",
    "import": None,
    "context": "reading:context",
    "query": "reading:query",
    "digest": "reading:digest",
    "memory": None,
    "status": "operating:status",
    "dlq": None,
    "agent-zero": None,
    "lint": "operating:lint",
    "doctor": "operating:doctor",
    "demo": "demo:demo",
}
"""In the order of ``--help``: a command's module and function, None for a group."""


def _loading(commands: Mapping[str, str | None]) -> type[TyperGroup]:
    """Return a group that imports a command when it is asked for it."""

    class Loading(TyperGroup):
        @override
        def list_commands(self, ctx: Any) -> list[str]:
            return [*commands]

        @override
        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            # An unknown name is compared with those of all commands, to suggest the nearest one.
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


def _version(asked: bool) -> None:
    if asked:
        say(f"graphweft {metadata.version('graphweft')}")
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
