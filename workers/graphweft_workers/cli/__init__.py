"""The ``graphweft`` command. It imports the module of a command only when you name the command, so each starts fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, get_args, override

import typer
from typer.core import TyperCommand, TyperGroup

from graphweft_workers.cli.command_table import COMMANDS, CommandPlace, Group, Role
from graphweft_workers.support.garbage_collection import collect_nothing_at_the_end

__all__ = ("app", "main")

_WRONG_ARGUMENTS: Any = typer.BadParameter.__mro__[2]
"""What all errors of arguments are; typer has no public name for it."""


def _loading(commands: Mapping[str, CommandPlace | Group], default: str | None = None) -> type[TyperGroup]:
    """Return a group that imports a command on first use, and lists all without importing any.

    ``default`` is the command whose name may be left out.
    """
    places = {name: place for name, place in commands.items() if isinstance(place, CommandPlace)}

    class LoadingGroup(TyperGroup):
        @override
        def main(self, *given: Any, **more: Any) -> Any:
            """Run the command line; with ``--json``, also what is wrong with the arguments is said in JSON."""
            words = list((given[0] if given else more.get("args")) or sys.argv[1:])
            if "--json" not in words[: words.index("--") if "--" in words else None]:
                return super().main(*given, **more)
            from graphweft_workers.cli.output import print_error, print_errors_as_json

            print_errors_as_json(True)
            try:
                code = super().main(*given, **{**more, "standalone_mode": False})
            except _WRONG_ARGUMENTS as error:
                code = error.exit_code
                print_error(error.format_message(), exit_code=code)
            except typer.Abort:
                code = 1
            finally:
                print_errors_as_json(False)
            raise SystemExit(code or 0)

        @override
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if default is not None and args and args[0] not in commands and args[0] != "--help":
                args = [default, *args]
            return super().parse_args(ctx, args)

        @override
        def list_commands(self, ctx: Any) -> list[str]:
            return [*commands]

        @override
        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in places and cmd_name not in self.commands:
                self.add_command(_load(cmd_name, places[cmd_name]), cmd_name)
            return super().get_command(ctx, cmd_name)

        @override
        def format_help(self, ctx: Any, formatter: Any) -> None:
            with self._listed():
                super().format_help(ctx, formatter)

        @override
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] in commands:
                return super().resolve_command(ctx, args)
            if args and commands is COMMANDS and args[0] in get_args(Role):
                ctx.fail(f"No such command {args[0]!r}: it is a role. Did you mean `graphweft run {args[0]}`?")
            with self._listed():  # an unknown name is compared with all names, to suggest the nearest one
                return super().resolve_command(ctx, args)

        @contextmanager
        def _listed(self) -> Generator[None]:
            """Have a stand-in with its name and help for each command that is not loaded."""
            loaded = dict(self.commands)
            for name, place in places.items():
                self.commands.setdefault(name, TyperCommand(name, help=place.help))
            try:
                yield
            finally:
                self.commands = loaded

    return LoadingGroup


def _load(name: str, place: CommandPlace) -> Any:
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(import_module(f"{__name__}.{place.module}"), place.function))
    return typer.main.get_command(single)


app = typer.Typer(
    name="graphweft",
    cls=_loading(COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    help="Event-driven graph memory for agents.",
)
for _name, _group in COMMANDS.items():
    if isinstance(_group, Group):
        app.add_typer(
            typer.Typer(cls=_loading(_group.commands, _group.default), no_args_is_help=True, help=_group.help),
            name=_name,
        )


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


def _read_variables_in_lower_case() -> None:
    """Let options find their variables in any case, as settings do: one that limits a user must not be ignored."""
    environment = os.environ  # noqa: TID251 - no setting is read here
    for name, value in sorted(environment.items()):
        if name.upper().startswith("GRAPHWEFT_"):
            environment.setdefault(name.upper(), value)


def main() -> None:
    """Run the command line."""
    # To look for plugins, pydantic reads the metadata of all installed packages: 16 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # noqa: TID251 - no setting of ours
    _read_variables_in_lower_case()
    try:
        app()
    except SystemExit:
        if sys.argv[1:2] == ["hook"]:  # another code, such as 2 for an unknown option, would block the coding agent
            raise SystemExit(0) from None
        raise
    finally:
        collect_nothing_at_the_end()
