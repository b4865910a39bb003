"""Which jobs the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphweft_contracts import InvalidSettings, channels
from graphweft_workers.services import load_ontologies, make_bus, make_graph
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_workers.graph.store import GraphStore
    from graphweft_workers.memory.job import Job


def groups(settings: Settings) -> tuple[str, ...]:
    """Return the groups on the bus of the jobs that the settings ask for; none: there is nothing to do."""
    embeds = (channels.MEMORY_GROUP,) if settings.embedder != "none" else ()
    tidies = settings.memory_summarise_after or settings.memory_keep_days or settings.memory_keep_count
    reads = (channels.EPISODES_GROUP,) if settings.extractor != "none" else ()
    return (*embeds, *((channels.CONSOLIDATION_GROUP,) if tidies else ()), *reads)


def check(settings: Settings) -> None:
    """Raise ``InvalidSettings`` when the settings ask for no job."""
    if not groups(settings):
        raise InvalidSettings(
            "`run memory` has nothing to do: set GRAPHWEFT_EMBEDDER to what turns texts into vectors (hash:256 finds "
            "words, minilm and openai:MODEL find meaning), GRAPHWEFT_MEMORY_SUMMARISE_AFTER to when memories are "
            "condensed, GRAPHWEFT_MEMORY_KEEP_DAYS or GRAPHWEFT_MEMORY_KEEP_COUNT to how long they stay, or "
            "GRAPHWEFT_EXTRACTOR to what reads text episodes (graphiti:MODEL)"
        )


async def try_out(settings: Settings) -> None:
    """Raise what ``make_jobs`` raises when a job that the settings ask for cannot be made; nothing is connected."""
    graph = make_graph(settings)
    try:
        for job in make_jobs(settings, graph):
            await job.aclose()
    finally:
        await graph.aclose()


def make_jobs(settings: Settings, graph: GraphStore) -> list[Job]:
    """Return the jobs that the settings ask for; close each. Raises ``InvalidSettings`` as ``make_embedder`` does, and
    ``RulesError`` for ontologies that do not load.

    ``graph`` is for jobs that read what has taken effect; it stays the caller's. Nothing is connected or loaded yet.
    """
    jobs: list[Job] = []
    if settings.embedder != "none":
        from graphweft_workers.embedding.cached import CachedEmbedder
        from graphweft_workers.embedding.factory import make_embedder
        from graphweft_workers.memory.embedding import EmbeddingJob

        embedder = make_embedder(settings)
        if embedder is not None:
            # What a model has answered is not asked again when the bus goes away before it took the answer.
            jobs.append(EmbeddingJob(CachedEmbedder(embedder)))
    if channels.CONSOLIDATION_GROUP in groups(settings):
        from graphweft_workers.memory.upkeep import make_consolidation

        jobs.append(make_consolidation(settings, graph))
    if settings.extractor != "none":
        from graphweft_workers.extraction.factory import make_extractor
        from graphweft_workers.memory.episodes import EpisodesJob

        ontologies = load_ontologies(settings)
        extractor = make_extractor(settings)
        if extractor is not None:
            jobs.append(
                EpisodesJob(
                    extractor,
                    make_bus(settings, group=channels.EPISODES_GROUP),
                    ontologies,
                    timeout_s=settings.extractor_timeout_ms / 1000,
                    attempts=settings.extractor_attempts,
                    at_once=settings.extractor_at_once,
                )
            )
    return jobs
