"""Makes the context pipeline for the settings: of a responder, of rule tests, and of a past graph."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:  # a command that reads a count need not wait for the engine to load
    from graphweft_rules import RuleSet
    from graphweft_workers.injection.pipeline import ContextPipeline
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.rule_sets.active_rules import ActiveRules
    from graphweft_workers.settings.settings import Settings


def make_pipeline(
    settings: Settings,
    rules: RuleSet | ActiveRules,
    graph: GraphStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    **more: Any,
) -> ContextPipeline:
    """Return the pipeline; close it. ``clock`` also judges the validity of facts.

    ``more`` are arguments of ``ContextPipeline`` that the settings do not decide alone.
    """
    from graphweft_rules.output.token_count import token_counter
    from graphweft_workers.features.graphrag.retriever import HybridRetriever
    from graphweft_workers.injection.pipeline import ContextPipeline
    from graphweft_workers.retrieval.search import IndexNames

    names = IndexNames(
        index=settings.index_name, vector=settings.vector_index_name, fulltext=settings.fulltext_index_name
    )
    given: dict[str, Any] = {"query_timeout_s": settings.query_timeout_ms / 1000, "clock": clock, **more}
    return ContextPipeline(
        rules,
        graph,
        index_names=names,
        facts=HybridRetriever.of(graph, settings, clock=clock),
        count=token_counter(settings.token_counter),
        redact=settings.context_redact,
        **given,
    )


@asynccontextmanager
async def opened_pipeline(
    settings: Settings, rules: RuleSet | ActiveRules, graph: GraphStore, **more: Any
) -> AsyncGenerator[ContextPipeline]:
    """Yield a pipeline with the embedder of the settings; see ``make_pipeline``."""
    from graphweft_workers.wiring.embedder import make_embedder

    async with AsyncExitStack() as stack:
        embedder = make_embedder(settings)
        if embedder is not None:
            stack.push_async_callback(embedder.aclose)
        pipeline = make_pipeline(settings, rules, graph, embedder=embedder, **more)
        stack.push_async_callback(pipeline.aclose)
        yield pipeline
