"""The client of graphweft: publish what agents do, get context before each turn, remember and recall."""

from graphweft.client import Client, ClientStats
from graphweft.hooks import GraphInjectionHooks, create_graph_injection_hook, create_graph_mutation_hook
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
)
