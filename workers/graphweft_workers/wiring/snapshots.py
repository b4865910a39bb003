"""The snapshots that the settings name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.features import features

if TYPE_CHECKING:
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.replay.restoring import SnapshotSource

_MADE_BY_ONE: Final = "one load at a time"
"""Earlier snapshots do not count: two commands at once may have written to the graph of one."""


def make_restoring(
    settings: Settings, bus: Bus, graph: GraphStore, app_id: str, warn: Callable[[str], None]
) -> SnapshotSource | None:
    """Return the snapshots for a replay into ``graph``; None if the settings want none.

    ``warn`` gets a sentence about each file that cannot be used. Raises ``InvalidSettings`` for a wrong archive.
    """
    from graphweft_workers.replay.restoring import SnapshotSource
    from graphweft_workers.replay.snapshots import Snapshots

    if settings.archive is None or not settings.snapshot_events:
        return None
    code = hashlib.sha256(json.dumps([*_code(settings), graph.dialect.name]).encode()).hexdigest()
    snapshots = Snapshots(open_blobs(settings.archive), code, every=settings.snapshot_events, warn=warn)
    return SnapshotSource(bus, graph, app_id, snapshots)


def _code(settings: Settings) -> Iterator[str]:
    """Yield what the log does not hold and graphs follow from: the version, built-in mutations, ontologies."""
    from graphweft_workers.features.episodes.ontologies import FOLDER

    yield metadata.version("graphweft")
    yield _MADE_BY_ONE
    for feature in features(settings):
        for pack in feature.mutations():
            for each in pack.mutations:
                yield f"{each.rule}/{each.id}: {each.cypher.statement}"
    folder = settings.rules.parent / FOLDER
    for file in sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else ():
        yield f"{file.relative_to(folder)} {_hash_of(file)}"


def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
