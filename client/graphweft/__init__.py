"""The client of graphweft: publish what agents do, get context before each turn."""

from graphweft.client import Client, ClientStats
from graphweft.hooks import GraphInjectionHooks, create_graph_injection_hook, create_graph_mutation_hook
from graphweft.sync import SyncClient
from graphweft_contracts import Block, ContextReply, Event, Missing

__all__ = (
    "Block",
    "Client",
    "ClientStats",
    "ContextReply",
    "Event",
    "GraphInjectionHooks",
    "Missing",
    "SyncClient",
    "create_graph_injection_hook",
    "create_graph_mutation_hook",
)
