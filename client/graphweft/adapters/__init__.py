"""Adapters: they turn callbacks into events, and put context into prompts. Importing this package imports no runtime.

The adapters of runtimes are in the distribution ``graphweft-runtimes``. Their modules have a second name here: the
module ``crewai`` of this package is ``graphweft_runtimes.crewai``.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_DISTRIBUTION: Final = "graphweft_runtimes"
_RUNTIMES: Final = frozenset(
    {
        *("ag2", "ag2_classic", "agent_framework", "crewai", "google_adk", "langchain", "llama_index", "openai_agents"),
        *("faststream", "otel", "pydantic_ai"),
    }
)
_SHARED: Final = frozenset({"chat_runs", "runtime_adapter", "versions"})
"""Modules there that adapters of several runtimes use."""


class _SecondNames(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _first(fullname) in _RUNTIMES | _SHARED else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the other distribution in place of the new one, as the import system allows."""
        try:
            sys.modules[module.__name__] = importlib.import_module(module.__name__.replace(__name__, _DISTRIBUTION, 1))
        except ModuleNotFoundError as error:
            if error.name != _DISTRIBUTION:
                raise
            first = _first(module.__name__)
            extra = f"[{first.replace('_', '-')}]" if first in _RUNTIMES else ""
            message = f"{module.__name__} is in another distribution: pip install 'graphweft-runtimes{extra}'"
            raise ModuleNotFoundError(message, name=_DISTRIBUTION) from error


def _first(fullname: str) -> str:
    """Return the first part of a module's name after this package's, or an empty text for a module of another one."""
    package, _, rest = fullname.partition(f"{__name__}.")
    return "" if package else rest.partition(".")[0]


sys.meta_path.insert(0, _SecondNames())  # before what finds files: they would be imported twice, by both names
