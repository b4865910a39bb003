"""``graphweft agent-zero``: install or remove the plugin in a folder of Agent Zero."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from graphweft_workers.cli.options import Json, Rules, command
from graphweft_workers.cli.output import show
from graphweft_workers.new_project import AGENT_ZERO, agent_zero_files, write_project
from graphweft_workers.reports.report import PlainReport

_Root = Annotated[Path, typer.Argument(help="Folder of Agent Zero, the one with agent.py; /a0 in its container.")]
_NEXT: Final = (
    "Next: run `pip install graphweft` in Agent Zero's Python, set GRAPHRAG_ENABLED=true and GRAPHWEFT_BUS_URL for it, "
    "and restart it. Run `GRAPHRAG_ENABLED=true graphweft up` in the folder that has the rules."
)


@command
async def agent_zero_install(
    path: _Root,
    force: Annotated[bool, typer.Option("--force", help="Also overwrite files that were changed.")] = False,
    rules: Rules = None,
    json: Json = False,
) -> None:
    """Install the plugin into an Agent Zero, or update it, and write rules for it. Prints the files that it wrote.

    The rules go into the folder of workflows, where `graphweft up` finds them, unless it has some for this workflow.
    """
    from graphweft.adapters.agent_zero.installation import install
    from graphweft_workers.settings.settings import Settings

    folder = Settings.load(rules=rules).rules
    done = install(path, force=force)
    files = {} if (folder / AGENT_ZERO).exists() else agent_zero_files()
    write_project(folder, files)
    said = [f"wrote {done.folder / name}" for name in done.written]
    said += [f"kept {done.folder / name}: it was changed; --force overwrites it" for name in done.kept]
    said += [f"wrote {folder / name}" for name in files] or [f"kept the rules in {folder / AGENT_ZERO}"]
    said.append(_NEXT if done.written else f"{done.folder} is up to date")
    written = [str(folder / name) for name in files]
    show(PlainReport({**done.as_json(), "rules": written}, said), json=json)


@command
async def agent_zero_uninstall(path: _Root, json: Json = False) -> None:
    """Remove the plugin's files. Files that were changed or added stay."""
    from graphweft.adapters.agent_zero.installation import uninstall

    done = uninstall(path)
    said = [f"removed {done.folder / name}" for name in done.removed]
    said += [f"kept {done.folder / name}: it was changed or added" for name in done.kept]
    none = [] if done.removed else [f"nothing to remove in {done.folder}"]
    show(PlainReport(done.as_json(), [*said, *none]), json=json)
