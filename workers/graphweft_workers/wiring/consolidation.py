"""Makes the job that condenses and forgets memories, by the settings."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.features.memory.consolidation import ConsolidationJob
from graphweft_workers.features.memory.extractive_summariser import ExtractiveSummariser
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.features.memory.summariser import Summariser
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import openai_endpoint, require_package
from graphweft_workers.wiring.connections import make_bus

_OPENAI: Final = "openai:"


def make_consolidation(settings: Settings, graph: GraphStore) -> ConsolidationJob:
    """Return the job that the settings ask for; close it. Raises ``InvalidSettings``. Nothing is connected yet."""
    after, keep, keep_count = (
        settings.memory_summarise_after, settings.memory_summarise_keep, settings.memory_keep_count
    )  # fmt: skip
    if after and keep >= after:
        raise InvalidSettings(
            f"memory_summarise_keep is {keep} and memory_summarise_after {after}: nothing is left to condense; make "
            "the second one greater"
        )
    if after and 0 < keep_count < after:
        raise InvalidSettings(
            f"memory_keep_count is {keep_count} and memory_summarise_after {after}: memories are forgotten before they "
            "are condensed; make the first one at least as great"
        )
    retention = None
    if settings.memory_keep_days or keep_count:
        retention = Retention(graph, keep_days=settings.memory_keep_days, keep_count=keep_count, condensed=bool(after))
    return ConsolidationJob(
        graph,
        make_bus(settings),
        make_summariser(settings) if after else None,
        after=after,
        keep=keep,
        retention=retention,
    )


def make_summariser(settings: Settings) -> Summariser:
    """Return the summariser that the settings name; close it. Raises ``InvalidSettings``."""
    if not settings.summariser.startswith(_OPENAI):
        return ExtractiveSummariser()
    who = f"the summariser {settings.summariser!r}"
    require_package(who, "httpx", "openai-compatible")
    url = openai_endpoint(
        who,
        settings.summariser_url,
        settings.summariser_api_key,
        key_names="GRAPHWEFT_SUMMARISER_API_KEY",
        url_names="GRAPHWEFT_SUMMARISER_URL",
    )
    from graphweft_workers.features.memory.openai_summariser import OpenAISummariser

    return OpenAISummariser(
        url,
        settings.summariser.removeprefix(_OPENAI),
        api_key=settings.summariser_api_key,
        timeout_s=settings.summariser_timeout_ms / 1000,
    )
