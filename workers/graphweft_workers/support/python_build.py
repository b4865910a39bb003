"""How the Python of this process was built: without its optimizations, a worker takes up to 1.4 times the CPU."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonBuild:
    """What is known of a build."""

    profile_guided: bool
    """Compiled with a profile of runs (PGO)."""
    link_time: bool
    """Optimized when linked (LTO)."""
    stated: bool = True
    """Whether the build says so. Packages of systems are optimized, and some do not say it."""

    @classmethod
    def of(cls, options: str | None, base_prefix: str) -> PythonBuild:
        """Return the build with these options of ``configure``; None where there was no ``configure``."""
        given = (options or "").replace("'", " ").split()
        profile_guided, link_time = "--enable-optimizations" in given, any(map(_asks_for_lto, given))
        stated = profile_guided or link_time or (options is not None and base_prefix != "/usr")
        return cls(profile_guided=profile_guided, link_time=link_time, stated=stated)

    @property
    def is_slow(self) -> bool:
        """Whether a build with a profile of runs would be quicker."""
        return self.stated and not self.profile_guided

    def __str__(self) -> str:
        if not self.stated:
            return "a build that does not say how it was optimized"
        if self.profile_guided and self.link_time:
            return "built with PGO and LTO"
        if self.profile_guided or self.link_time:
            return f"built with {'PGO' if self.profile_guided else 'LTO'} only"
        return "built without PGO and LTO"


def this_build() -> PythonBuild:
    """Return the build of the Python that runs this process."""
    return PythonBuild.of(sysconfig.get_config_var("CONFIG_ARGS"), sys.base_prefix)


def _asks_for_lto(option: str) -> bool:
    return option == "--with-lto" or (option.startswith("--with-lto=") and option != "--with-lto=no")
