"""The contracts of graphweft: events, memories, context requests and replies, dead letters, channels, the wire form."""

from typing import TYPE_CHECKING

from graphweft_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from graphweft_contracts.context import Block, ContextReply, ContextRequest, Explanation, Missing, ReasonCode
    from graphweft_contracts.dead_letters import DeadLetter, DeadLetterReason
    from graphweft_contracts.episodes import EPISODES
    from graphweft_contracts.errors import (
        BusUnavailable,
        Fenced,
        GraphUnavailable,
        GraphweftError,
        InvalidEvent,
        InvalidRules,
        InvalidSettings,
        NotRunning,
        Permanent,
        QueryFailed,
        RefusedEvent,
        Transient,
    )
    from graphweft_contracts.events import (
        LIFECYCLE,
        AgentTurnComplete,
        AgentTurnStart,
        Event,
        ModelCallComplete,
        Payload,
        ToolCallComplete,
        ToolCallStart,
        WorkflowComplete,
        WorkflowError,
        WorkflowPhaseComplete,
        WorkflowStart,
    )
    from graphweft_contracts.layout import Layout, Order
    from graphweft_contracts.memory import (
        MEMORY,
        MemoryAdd,
        MemoryEmbedded,
        MemoryErase,
        MemoryForget,
        MemoryMessage,
        MemoryScope,
        MemorySummarized,
    )
    from graphweft_contracts.search import SearchQuery

__all__ = (
    "EPISODES",
    "LIFECYCLE",
    "MEMORY",
    "AgentTurnComplete",
    "AgentTurnStart",
    "Block",
    "BusUnavailable",
    "ContextReply",
    "ContextRequest",
    "DeadLetter",
    "DeadLetterReason",
    "Event",
    "Explanation",
    "Fenced",
    "GraphUnavailable",
    "GraphweftError",
    "InvalidEvent",
    "InvalidRules",
    "InvalidSettings",
    "Layout",
    "MemoryAdd",
    "MemoryEmbedded",
    "MemoryErase",
    "MemoryForget",
    "MemoryMessage",
    "MemoryScope",
    "MemorySummarized",
    "Missing",
    "ModelCallComplete",
    "NotRunning",
    "Order",
    "Payload",
    "Permanent",
    "QueryFailed",
    "ReasonCode",
    "RefusedEvent",
    "SearchQuery",
    "ToolCallComplete",
    "ToolCallStart",
    "Transient",
    "WorkflowComplete",
    "WorkflowError",
    "WorkflowPhaseComplete",
    "WorkflowStart",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graphweft_contracts.context": (
            "Block",
            "ContextReply",
            "ContextRequest",
            "Explanation",
            "Missing",
            "ReasonCode",
        ),
        "graphweft_contracts.dead_letters": (
            "DeadLetter",
            "DeadLetterReason",
        ),
        "graphweft_contracts.episodes": ("EPISODES",),
        "graphweft_contracts.errors": (
            "BusUnavailable",
            "Fenced",
            "GraphUnavailable",
            "GraphweftError",
            "InvalidEvent",
            "InvalidRules",
            "InvalidSettings",
            "NotRunning",
            "Permanent",
            "QueryFailed",
            "RefusedEvent",
            "Transient",
        ),
        "graphweft_contracts.events": (
            "LIFECYCLE",
            "AgentTurnComplete",
            "AgentTurnStart",
            "Event",
            "ModelCallComplete",
            "Payload",
            "ToolCallComplete",
            "ToolCallStart",
            "WorkflowComplete",
            "WorkflowError",
            "WorkflowPhaseComplete",
            "WorkflowStart",
        ),
        "graphweft_contracts.layout": (
            "Layout",
            "Order",
        ),
        "graphweft_contracts.memory": (
            "MEMORY",
            "MemoryAdd",
            "MemoryEmbedded",
            "MemoryErase",
            "MemoryForget",
            "MemoryMessage",
            "MemoryScope",
            "MemorySummarized",
        ),
        "graphweft_contracts.search": ("SearchQuery",),
    },
)
