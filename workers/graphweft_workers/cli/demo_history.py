"""The second part of ``graphweft demo``: a rule changes, and history follows it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from graphweft_workers.cli.output import say
from graphweft_workers.roles.settings import Settings

_FILE: Final = Path("_shared/graph_injection_base.yaml")
_BEFORE: Final = "MERGE (p:Problem {text: $problem})"
_AFTER: Final = "MERGE (p:Problem {text: split($problem, ',')[0]})"
PROBLEM: Final = "Error: payment amount does not add up"
"""A problem that has one node by the changed rule, and one for each amount before."""
_INDENT: Final = "  "


async def change_rules(settings: Settings, folder: Path, app: str, program: str) -> Path | None:
    """Change a rule in a copy of ``folder``, show what that changes in history, and return the copy.

    ``program`` is how the command is typed. The graph follows the changed rule afterwards. None: a command failed.
    """
    changed = settings.data / "changed-rules"
    shutil.copytree(folder, changed, dirs_exist_ok=True)
    file = changed / _FILE
    text = file.read_text("utf-8")
    file.write_text(text.replace(_BEFORE, _AFTER), "utf-8")
    say("\nA rule changes: problems with the same first words become one node.")
    say(f"{_INDENT}- {_BEFORE}\n{_INDENT}+ {_AFTER}\n")
    where = ("--app", app, "--data", str(settings.data))
    for words in (
        ("diff", *where, "--rules", str(changed), "--limit", "2"),
        ("rules", "push", str(changed), "--data", str(settings.data)),
        ("rebuild", *where, "--rules", str(changed), "--swap"),
    ):
        if not await _run(settings, words, program):
            return None
    return changed


async def explain_problem(settings: Settings, app: str, program: str) -> bool:
    """Show which events wrote a node of the changed rule; return whether the command worked."""
    key = ("--label", "Problem", "--key", PROBLEM, "--limit", "2")
    return await _run(settings, ("why", "--app", app, "--data", str(settings.data), *key), program)


async def _run(settings: Settings, words: Sequence[str], program: str) -> bool:
    shown = " ".join(f"'{word}'" if " " in word else word for word in words)
    say(f"$ {program} {shown}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "graphweft_workers.cli", *words),
        env=settings.as_environment(),
        stdin=asyncio.subprocess.DEVNULL,
    )
    code = await process.wait()
    say("")
    return code == 0
