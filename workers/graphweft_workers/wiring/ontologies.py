"""The ontologies that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from graphweft_contracts import Event
from graphweft_workers.settings.settings import Settings

if TYPE_CHECKING:  # a command that reads a count need not wait for them to load
    from graphweft_rules.files.findings import Finding
    from graphweft_workers.features.episodes.ontologies import Ontologies


def load_ontologies(settings: Settings) -> Ontologies:
    """Load the built-in ontologies, and those in the folder ``ontologies`` beside ``settings.rules`` if there is one.

    Raises ``RulesError`` with all findings.
    """
    from graphweft_workers.features.episodes import ontologies

    folder = ontologies_folder(settings)
    return ontologies.load_ontologies(folder) if folder.is_dir() else ontologies.Ontologies()


def ontologies_folder(settings: Settings) -> Path:
    """Return the folder ``ontologies`` beside ``settings.rules``, which may not exist."""
    from graphweft_workers.features.episodes import ontologies

    return settings.rules.parent / ontologies.FOLDER


def ontology_contents(settings: Settings) -> dict[str, bytes]:
    """Return the contents of the ontology files as they are now, by name."""
    from graphweft_workers.features.episodes import ontologies

    folder, found = ontologies_folder(settings), dict[str, bytes]()
    for file in ontologies.ontology_files(folder) if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it may be removed just now
            found[file.name] = file.read_bytes()
    return found


def make_refusal(ontologies: Ontologies) -> Callable[[Event], str | None]:
    """Return a function that says why an event about episodes would have no effect: see ``Pack.refusal``."""
    from graphweft_workers.features.episodes.mutations import EpisodeMutations

    return EpisodeMutations(ontologies).refusal


def apart(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return the paths of rules, and the paths of ontologies."""
    from graphweft_workers.features.episodes import ontologies

    return ontologies.apart(paths)


def lint_ontologies(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings of ontology files; never raises on content."""
    from graphweft_workers.features.episodes import ontologies

    return ontologies.lint_ontologies(paths)
