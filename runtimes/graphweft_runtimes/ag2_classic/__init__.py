"""AG2 classic (``autogen`` 0.x): events of agents and group chats, and context in the system message of each turn."""

from graphweft_runtimes.ag2_classic.adapter import (
    AG2ClassicAdapter,
    create_graph_injection_hook,
    create_graph_mutation_hook,
)

__all__ = ("AG2ClassicAdapter", "create_graph_injection_hook", "create_graph_mutation_hook")
