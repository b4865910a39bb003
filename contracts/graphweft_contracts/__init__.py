"""The contracts of graphweft: events, context requests and replies, dead letters, channels, the wire form."""

from graphweft_contracts.context import Block, ContextReply, ContextRequest, Explanation, Missing, ReasonCode
from graphweft_contracts.dead_letters import DeadLetter, DeadLetterReason
from graphweft_contracts.errors import (
    BusUnavailable,
    Displaced,
    GraphUnavailable,
    GraphweftError,
    InvalidEvent,
    InvalidRules,
    InvalidSettings,
    NotRunning,
    Permanent,
    QueryFailed,
    Transient,
)
from graphweft_contracts.events import (
    LIFECYCLE,
    AgentTurnComplete,
    AgentTurnStart,
    Event,
    Payload,
    ToolCallComplete,
    WorkflowComplete,
    WorkflowError,
    WorkflowPhaseComplete,
)

__all__ = (
    "LIFECYCLE",
    "AgentTurnComplete",
    "AgentTurnStart",
    "Block",
    "BusUnavailable",
    "ContextReply",
    "ContextRequest",
    "DeadLetter",
    "DeadLetterReason",
    "Displaced",
    "Event",
    "Explanation",
    "GraphUnavailable",
    "GraphweftError",
    "InvalidEvent",
    "InvalidRules",
    "InvalidSettings",
    "Missing",
    "NotRunning",
    "Payload",
    "Permanent",
    "QueryFailed",
    "ReasonCode",
    "ToolCallComplete",
    "Transient",
    "WorkflowComplete",
    "WorkflowError",
    "WorkflowPhaseComplete",
)
