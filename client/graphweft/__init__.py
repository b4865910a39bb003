"""The client of graphweft: publish what agents do, get context before each turn, remember and recall."""

from typing import TYPE_CHECKING

from graphweft_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from graphweft.adapters.model_clients import wrap_anthropic, wrap_litellm, wrap_openai
    from graphweft.client import Client
    from graphweft.hooks import GraphInjectionHooks, create_graph_injection_hook, create_graph_mutation_hook
    from graphweft.loop_connection import ClientStats
    from graphweft.memory import MemoryClient, SyncMemoryClient
    from graphweft.sync import SyncClient
    from graphweft_contracts import Block, ContextReply, Event, MemoryScope, Missing


__all__ = (
    "Block",
    "Client",
    "ClientStats",
    "ContextReply",
    "Event",
    "GraphInjectionHooks",
    "MemoryClient",
    "MemoryScope",
    "Missing",
    "SyncClient",
    "SyncMemoryClient",
    "create_graph_injection_hook",
    "create_graph_mutation_hook",
    "wrap_anthropic",
    "wrap_litellm",
    "wrap_openai",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graphweft.adapters.model_clients": (
            "wrap_anthropic",
            "wrap_litellm",
            "wrap_openai",
        ),
        "graphweft.client": ("Client",),
        "graphweft.hooks": (
            "GraphInjectionHooks",
            "create_graph_injection_hook",
            "create_graph_mutation_hook",
        ),
        "graphweft.loop_connection": ("ClientStats",),
        "graphweft.memory": (
            "MemoryClient",
            "SyncMemoryClient",
        ),
        "graphweft.sync": ("SyncClient",),
        "graphweft_contracts": (
            "Block",
            "ContextReply",
            "Event",
            "MemoryScope",
            "Missing",
        ),
    },
)
