"""The features of graphweft and of other packages, for the settings: their mutations and their jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from graphweft_contracts import InvalidSettings, channels
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules.matching.pack import Pack
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.feature import Feature
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.ports.job import Job


class MemoryFeature:
    """Memories of users and threads: kept by mutations; embedded, condensed, compared and forgotten by jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def mutations(self) -> Sequence[Pack]:
        """See ``Feature.mutations``."""
        from graphweft_workers.features.memory.mutations import MemoryMutations
        from graphweft_workers.wiring.ontologies import load_ontologies

        return (MemoryMutations(load_ontologies(self._settings).predicate_rules),)

    def groups(self) -> Sequence[str]:
        """See ``Feature.groups``."""
        given = self._settings
        embeds = (channels.MEMORY_GROUP,) if given.embedder != "none" else ()
        condenses = given.memory_summarise_after or given.memory_keep_days or given.memory_keep_count
        judges = (channels.VERDICTS_GROUP,) if given.judge != "none" else ()
        return (*embeds, *((channels.CONSOLIDATION_GROUP,) if condenses else ()), *judges)

    def make_jobs(self, graph: GraphStore, make_bus: Callable[[str], Bus]) -> Sequence[Job]:
        """See ``Feature.make_jobs``."""
        jobs: list[Job] = []
        if channels.MEMORY_GROUP in self.groups():
            from graphweft_workers.embedding.cached import CachedEmbedder
            from graphweft_workers.features.memory.embedding import EmbeddingJob
            from graphweft_workers.wiring.embedder import make_embedder

            embedder = make_embedder(self._settings)
            if embedder is not None:
                # The model is not asked again when the bus goes away before it took the vectors.
                jobs.append(EmbeddingJob(CachedEmbedder(embedder)))
        if channels.CONSOLIDATION_GROUP in self.groups():
            from graphweft_workers.wiring.consolidation import make_consolidation

            jobs.append(make_consolidation(self._settings, graph))
        if channels.VERDICTS_GROUP in self.groups():
            from graphweft_workers.wiring.verdicts import make_verdicts

            jobs.append(make_verdicts(self._settings, graph))
        return jobs


class EpisodesFeature:
    """Texts and documents: kept by mutations, and read into entities and relations by a job."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def mutations(self) -> Sequence[Pack]:
        """See ``Feature.mutations``."""
        from graphweft_workers.features.episodes.mutations import EpisodeMutations
        from graphweft_workers.wiring.ontologies import load_ontologies

        return (EpisodeMutations(load_ontologies(self._settings)),)

    def groups(self) -> Sequence[str]:
        """See ``Feature.groups``."""
        return (channels.EPISODES_GROUP,) if self._settings.extractor != "none" else ()

    def make_jobs(self, graph: GraphStore, make_bus: Callable[[str], Bus]) -> Sequence[Job]:
        """See ``Feature.make_jobs``."""
        if not self.groups():
            return ()
        from graphweft_workers.features.episodes.job import EpisodesJob
        from graphweft_workers.wiring.extractor import make_extractor
        from graphweft_workers.wiring.ontologies import load_ontologies

        ontologies = load_ontologies(self._settings)
        extractor = make_extractor(self._settings)
        if extractor is None:
            return ()
        return (
            EpisodesJob(
                extractor,
                make_bus(channels.EPISODES_GROUP),
                ontologies,
                timeout_s=self._settings.extractor_timeout_ms / 1000,
                attempts=self._settings.extractor_attempts,
                at_once=self._settings.extractor_at_once,
            ),
        )


def features(settings: Settings) -> list[Feature]:
    """Return the features: graphweft's own, then other packages' by the names of their entry points."""
    return [MemoryFeature(settings), EpisodesFeature(settings), *(make(settings) for make in _others())]


@cache
def _others() -> tuple[Callable[[Settings], Feature], ...]:
    points = sorted(entry_points(group="graphweft.features"), key=lambda point: point.name)
    return tuple(point.load() for point in points)


def groups(settings: Settings) -> tuple[str, ...]:
    """Return the reader groups of the jobs that the settings ask for; none: there is nothing to do."""
    return tuple(group for feature in features(settings) for group in feature.groups())


def check(settings: Settings) -> None:
    """Raise ``InvalidSettings`` when the settings ask for no job."""
    if not groups(settings):
        raise InvalidSettings(
            "`run memory` has nothing to do. Set GRAPHWEFT_EMBEDDER to embed memories (hash:256 finds words, minilm "
            "and openai:MODEL find meaning), GRAPHWEFT_MEMORY_SUMMARISE_AFTER to condense them, "
            "GRAPHWEFT_MEMORY_KEEP_DAYS or GRAPHWEFT_MEMORY_KEEP_COUNT to forget them, GRAPHWEFT_JUDGE to compare "
            "statements (openai:MODEL), or GRAPHWEFT_EXTRACTOR to read text episodes (graphiti:MODEL)"
        )


async def try_out(settings: Settings) -> None:
    """Raise the error of ``make_jobs`` if a job cannot be made; nothing is connected."""
    graph = make_graph(settings)
    try:
        for job in make_jobs(settings, graph):
            await job.aclose()
    finally:
        await graph.aclose()


def make_jobs(settings: Settings, graph: GraphStore) -> list[Job]:
    """Return the jobs that the settings ask for; close each. See ``Feature.make_jobs``."""

    def bus(group: str) -> Bus:
        return make_bus(settings, group=group)

    return [job for feature in features(settings) for job in feature.make_jobs(graph, bus)]
