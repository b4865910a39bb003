"""The page of all commands with their options, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from graphweft_workers.cli import app
from website.markdown import code, table


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Give the full name, the command and its context of each command."""
    yield from _inside(typer.main.get_command(app), "graphweft", None)


def _inside(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    context = command.context_class(command, info_name=name, parent=parent)
    if not hasattr(command, "list_commands"):
        yield (f"{parent.command_path} {name}" if parent else name), command, context
        return
    for each in command.list_commands(context):
        yield from _inside(command.get_command(context, each), each, context)


def commands_page() -> str:
    """Return the page."""
    parts = [
        "# Commands\n",
        "Written from the command line. [Commands and settings](../commands.md) describes each command with examples, "
        "exit codes and the form of `--json`.\n",
    ]
    for name, command, context in commands():
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        parts += [f"## {code(name)}\n", f"{_help(command.help)}\n", f"```text\n{usage}\n```\n"]
        records = [record for each in command.params if (record := each.get_help_record(context))]
        if records:
            parts.append(table(("option", "meaning"), [(code(option), meaning) for option, meaning in records]))
    return "\n".join(parts)


def _help(text: str | None) -> str:
    return (text or "").replace("\b", "").strip()
