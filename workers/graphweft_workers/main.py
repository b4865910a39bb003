"""Entry point of the ``graphweft`` command. It also works where only the client is installed."""

from __future__ import annotations

import sys
from typing import Final

from graphweft_workers.support.garbage_collection import collect_less_while_loading

_OLDEST: Final = (3, 12)
"""The oldest Python of workers and commands. The client may have an older one, and is in the same wheel."""


def main() -> None:
    """Run the command line, or name the missing extra. ``--version`` and health checks take a short path."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules load; commands end by themselves
        raise SystemExit(130) from None


def _run() -> None:
    collect_less_while_loading()
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        from importlib import metadata

        sys.stdout.write(f"graphweft {metadata.version('graphweft')}\n")
        return
    if sys.version_info < _OLDEST:
        version, oldest = (".".join(map(str, each[:2])) for each in (sys.version_info, _OLDEST))
        sys.stderr.write(
            f"error: the graphweft command needs Python {oldest} or later, and this is {version}; with this Python, "
            f"only the client works. Make the environment again: python{oldest} -m venv .venv. Or with uv, in a "
            f"checkout: uvx --python {oldest} --from '.[embedded]' graphweft demo\n"
        )
        raise SystemExit(_code(arguments))
    if arguments[:1] == ["doctor"]:
        from graphweft_workers.processes import heartbeat

        code = heartbeat.main(arguments)
        if code is not None:
            raise SystemExit(code)
    try:
        from graphweft_workers.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "graphweft").startswith("graphweft"):
            raise
        sys.stderr.write(
            f"error: the graphweft command needs {error.name!r}, which a base install leaves out: "
            "pip install 'graphweft[embedded]' (with bus and graph in one local process) or 'graphweft[worker]'. "
            "Without an install: uvx --from 'graphweft[embedded]' graphweft demo\n"
        )
        raise SystemExit(_code(arguments)) from None
    run()


def _code(arguments: list[str]) -> int:
    """Return the exit code of a command that cannot run. A hook with another code than 0 blocks its coding agent."""
    return 0 if arguments[:1] == ["hook"] else 2
