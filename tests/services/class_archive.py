"""Archives of the classes that a server has loaded: with one, the JVM starts it for about half the work.

``python -m tests.services.prepare`` makes them, as ``make test`` does. Without them tests take longer.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.maven import cache

__all__ = ("ClassArchive",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """A file in the user's cache. ``contents`` is what it depends on: the class path, the options, what loads them."""

    name: str
    contents: Sequence[str]

    @property
    def path(self) -> Path:
        key = hashlib.sha256("\n".join([_version(), *self.contents]).encode()).hexdigest()[:12]
        return cache() / f"{self.name}-{key}.jsa"

    def options(self) -> list[str]:
        """Return the options of ``java`` that use it, if it is there; a JVM that cannot use it does without."""
        return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto"] if self.path.exists() else []

    def make(self, run: Callable[[list[str], Path], None]) -> None:
        """Make it unless it is there: ``run`` runs the server with these options and this folder, in order to its end.

        A JVM that writes no archive is no error.
        """
        if self.path.exists():
            return
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=f".{self.name}-") as scratch:
            made = Path(scratch) / "classes.jsa"
            run([f"-XX:ArchiveClassesAtExit={made}"], Path(scratch))
            if made.exists():
                made.replace(self.path)


@functools.cache
def _version() -> str:
    """An archive belongs to one build of the JVM."""
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return done.stderr + done.stdout
