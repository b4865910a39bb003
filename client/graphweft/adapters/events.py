"""The types of the events that adapters emit, the same for all runtimes.

``graphweft_contracts.events`` declares the fields of their data. Every event has ``data.context``, the runtime's
context variables, and the ids of its chat as attributes. Unknown fields are absent. Durations are milliseconds of a
monotonic clock.
"""

from __future__ import annotations

from typing import Final

WORKFLOW_START: Final = "workflow.start"
PHASE_COMPLETE: Final = "workflow.phase_complete"
WORKFLOW_COMPLETE: Final = "workflow.complete"
WORKFLOW_ERROR: Final = "workflow.error"
TURN_START: Final = "agent.turn_start"
TURN_COMPLETE: Final = "agent.turn_complete"
TOOL_CALL_START: Final = "tool.call_start"
TOOL_CALL_COMPLETE: Final = "tool.call_complete"
MODEL_CALL_COMPLETE: Final = "model.call_complete"
CONTEXT_REQUEST: Final = "context.request"
"""The type that a redaction hook receives for a context request. It is not an event."""
