"""The ``graphweft`` command."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from graphweft_workers.cli import agent_zero, demo, letters, memory, operating, publish, reading, services
from graphweft_workers.cli.output import say

__all__ = ("app", "main")

app = typer.Typer(
    name="graphweft", no_args_is_help=True, add_completion=False, help="Event-driven graph memory for agents."
)
_imports = typer.Typer(no_args_is_help=True, help="Publish recorded runs of other tools as events.")
_dlq = typer.Typer(no_args_is_help=True, help="Dead letters: events and mutations that could not be applied.")
_memory = typer.Typer(no_args_is_help=True, help="Memories of agents: remember, find, list, forget, erase.")
_agent_zero = typer.Typer(no_args_is_help=True, help="The plugin for Agent Zero: put it there, take it away.")
_token = typer.Typer(no_args_is_help=True, help="Tokens of the HTTP gateway.")

app.command("up")(services.up)
app.command("run")(services.run)
_token.command("new")(services.token_new)
app.add_typer(_token, name="token")
app.command("emit")(publish.emit)
_imports.command("openai-chat")(publish.import_openai_chat)
app.add_typer(_imports, name="import")
app.command("context")(reading.context)
app.command("query")(reading.query)
app.command("digest")(reading.digest)
_memory.command("add")(memory.memory_add)
_memory.command("search")(memory.memory_search)
_memory.command("list")(memory.memory_list)
_memory.command("forget")(memory.memory_forget)
_memory.command("erase")(memory.memory_erase)
app.add_typer(_memory, name="memory")
app.command("status")(operating.status)
_dlq.command("list")(letters.dlq_list)
_dlq.command("show")(letters.dlq_show)
_dlq.command("retry")(letters.dlq_retry)
_dlq.command("drop")(letters.dlq_drop)
_dlq.command("skip")(letters.dlq_skip)
app.add_typer(_dlq, name="dlq")
_agent_zero.command("install")(agent_zero.agent_zero_install)
_agent_zero.command("uninstall")(agent_zero.agent_zero_uninstall)
app.add_typer(_agent_zero, name="agent-zero")
app.command("lint")(operating.lint)
app.command("doctor")(operating.doctor)
app.command("demo")(demo.demo)


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
