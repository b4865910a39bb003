"""The ``graphweft`` command's way in, which also works where only the client is installed."""

from __future__ import annotations

import sys
from typing import Final

from graphweft_workers import heartbeat

_EXTRAS: Final = frozenset({"cel", "falkordb", "pydantic_settings", "rich", "structlog", "typer", "yaml"})


def main() -> None:
    """Run the command line, or say which extra is missing. Any other import error passes through."""
    code = heartbeat.main(sys.argv[1:])
    if code is not None:  # a health check: cheap enough to run every few seconds
        raise SystemExit(code)
    try:
        from graphweft_workers.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        sys.stderr.write(
            f"error: the graphweft command needs {error.name!r}, which a base install leaves out: "
            "pip install 'graphweft[embedded]' (with bus and graph in one local process) or 'graphweft[worker]'\n"
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # while modules load
        raise SystemExit(130) from None
    run()
