"""Commands of the command line, run in the process of the tests: a process of their own takes ten times as long."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from graphweft_workers.cli import app as graphweft
from graphweft_workers.cli.output import stderr, stdout
from graphweft_workers.support.lazy_logger import before_next_entry

__all__ = ("Done", "inside")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def inside(arguments: Sequence[str], environment: Mapping[str, str], *, folder: Path | None = None) -> Done:
    """Run a command in a folder; an error that escapes fails the test. The standard input is not for it.

    What a worker of the test logs meanwhile in another thread is no output of the command.
    """
    out, err = io.StringIO(), io.StringIO()
    for console in (stdout, stderr):
        console.cache_clear()  # one that a test made by itself has another width
    with (
        _logs_apart(),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(folder or Path.cwd()),
    ):
        patch.setenv("COLUMNS", "200")  # rich looks into what the environment was when it was imported
        patch.setattr(os, "environ", {**environment, "COLUMNS": "200"})
        code: Any = None
        try:
            graphweft(list(arguments))
        except SystemExit as end:
            code = end.code
    assert "Traceback" not in err.getvalue()
    return Done(int(code or 0), out.getvalue(), err.getvalue())


@contextmanager
def _logs_apart() -> Iterator[None]:
    """Keep entries out of what is redirected, unless the command itself sets up logs, and forget its set-up."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stdout))
    try:
        yield
    finally:
        before_next_entry(None)
        structlog.reset_defaults()  # a logger that keeps a command's set-up is deaf to capture_logs later
