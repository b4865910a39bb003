"""``python -m benchmarks.command COMMAND …`` runs a ``graphweft`` command, and then prints as JSON what it took.

It imports nothing else, so its memory is that of the command. The processor time is that after the imports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import typer

from graphweft_workers.cli import app


def highest_resident_mb(pid: int | str) -> float:
    """Return the most memory that a process has had resident, in MB (Linux)."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["VmHWM"].split()[0]) / 1024


def main(arguments: Sequence[str]) -> None:
    commands: Any = typer.main.get_command(app)
    commands.get_command(None, arguments[0])  # imports the command
    begun = time.process_time()
    try:
        commands.main([*arguments], standalone_mode=False)
    except SystemExit as ended:  # with --json a command always ends so
        if ended.code:
            raise
    print(json.dumps({"cpu_s": time.process_time() - begun, "highest_mb": highest_resident_mb("self")}))


if __name__ == "__main__":
    main(sys.argv[1:])
