"""The second part of ``graphweft demo``: a rule changes, and history follows it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from graphweft_workers.cli.output import say
from graphweft_workers.processes.own_command import own_command
from graphweft_workers.settings.settings import Settings

_FILE: Final = Path("_shared/graph_injection_base.yaml")
_BEFORE: Final = "MERGE (p:Problem {text: $problem})"
_AFTER: Final = "MERGE (p:Problem {text: split($problem, ',')[0]})"
PROBLEM: Final = "Error: payment amount does not add up"
"""A problem that has one node by the changed rule, and one for each amount before."""
INDENT: Final = "  "
_ALL_LINES: Final = 10


def change_rules(settings: Settings, folder: Path) -> Path:
    """Change a rule in a copy of ``folder``, show the change, and return the copy."""
    changed = settings.data / "changed-rules"
    shutil.copytree(folder, changed, dirs_exist_ok=True)
    file = changed / _FILE
    text = file.read_text("utf-8")
    file.write_text(text.replace(_BEFORE, _AFTER), "utf-8")
    say(f"{INDENT}- {_BEFORE}\n{INDENT}+ {_AFTER}")
    return changed


async def replay_rules(settings: Settings, rules: Path, app: str, program: str) -> bool:
    """Show what the changed rules would change in history, and make the graph follow them.

    ``program`` is how the command is typed, with GRAPHWEFT_DATA set. False: a command failed.
    """
    for words, most in (
        (("diff", "--app", app, "--rules", str(rules), "--limit", "0"), _ALL_LINES),
        (("rules", "push", str(rules)), 1),
        (("rebuild", "--app", app, "--rules", str(rules), "--swap"), 1),
    ):
        if not await _run(settings, words, program, most=most):
            return False
    return True


async def explain_problem(settings: Settings, app: str, program: str) -> bool:
    """Show which events wrote a node of the changed rule; return whether the command worked."""
    return await _run(settings, ("why", "--app", app, "--label", "Problem", "--key", PROBLEM), program, most=_ALL_LINES)


async def _run(settings: Settings, words: Sequence[str], program: str, *, most: int) -> bool:
    """Run a command and print the first lines of its output; everything if it fails."""
    shown = " ".join(f"'{word}'" if " " in word else word for word in words)
    say(f"$ {program} {shown}")
    process = await asyncio.create_subprocess_exec(
        *own_command(*words),
        env=settings.as_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, progress = await process.communicate()
    lines = output.decode().splitlines()
    failed = bool(process.returncode)
    for line in lines if failed else lines[:most]:
        say(line)
    if failed:
        sys.stderr.write(progress.decode(errors="replace"))
    elif len(lines) > most:
        say("…")
    return not failed
