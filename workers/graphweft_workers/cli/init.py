"""``graphweft init``."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_workers.cli.invocation import invocation
from graphweft_workers.cli.options import Json, command
from graphweft_workers.cli.output import show
from graphweft_workers.new_project import WORKFLOW, project_files, write_project
from graphweft_workers.reports.report import PlainReport


@command
async def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the project, new or not.", show_default="this folder")
    ] = Path(),
    workflow: Annotated[str, typer.Option("--workflow", help="Name of the workflow.")] = WORKFLOW,
    json: Json = False,
) -> None:
    """Write a small project that runs: rules, tests of them, their JSON Schema, and a script. Overwrites nothing.

    Beside the workflow, it has the default rules in the workflow ``default``, unless that is there already.
    """
    there = {name for name in (DEFAULT_WORKFLOW, workflow) if os.path.lexists(folder / "workflows" / name)}
    files = project_files(workflow, defaults=there != {DEFAULT_WORKFLOW})  # a further workflow keeps what is there
    try:
        write_project(folder, files)
    except InvalidSettings as error:
        if workflow in there or not os.path.isdir(folder / "workflows"):
            raise
        raise InvalidSettings(
            f"{error}. To add the workflow {workflow!r} to this project, run `init` in a new folder, and move its "
            f"workflows/{workflow} to {folder / 'workflows'}"
        ) from None
    typed = invocation(sys.argv[0], sys.executable, here=Path.cwd(), folder=folder.resolve())
    notes = {
        f"{typed.graphweft} test": "run the tests of the rules",
        f"{typed.graphweft} up": "in one terminal",
        f"{typed.python} agent.py": "in another, as soon as graphweft is up",
    }
    steps = [*([f"cd {shlex.quote(str(folder))}"] if folder.resolve() != Path.cwd() else []), *notes]
    width = max(map(len, notes))
    written = [f"wrote {folder / name}" for name in files]
    lines = [f"  {step:<{width}}  # {notes[step]}" if step in notes else f"  {step}" for step in steps]
    found = {"folder": str(folder), "workflow": workflow, "written": list(files), "next": steps}
    show(PlainReport(found, [*written, "\nNext:", *lines]), json=json)
