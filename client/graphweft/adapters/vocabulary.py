"""The events that adapters tell, the same whatever the runtime, and what their data holds.

Every event has ``data.context``, the runtime's context variables, and the ids of its chat as attributes. Fields that
are not known are left out; times are milliseconds of a monotonic clock.

========================== ========================================================================================
``workflow.start``         nothing more
``workflow.phase_complete`` ``phase_name`` (the agent, or the runtime's own phase, that hands over), ``next_phase``
``workflow.complete``      ``status`` ("COMPLETE"), ``duration`` in seconds, ``outputs``
``workflow.error``         ``error_type``, ``error_message``; ``agent_name`` and ``turn_number`` where a turn failed
``agent.turn_start``       ``agent_name``, ``turn_number`` from 1 within the chat, as long as the process remembers it
``agent.turn_complete``    the same, ``success``, ``outcome`` (see ``Outcome``), ``response``, ``duration_ms``,
                           ``context_id`` of what the agent was given, ``handed_to``, ``error_type``, ``error_message``;
                           both have ``agent_id`` where the runtime tells it
``tool.call_start``        ``tool_name``, ``call_id``, ``arguments``; ``agent_name`` and ``turn_number`` of the turn
``tool.call_complete``     the same without ``arguments``, ``success``, ``result``, ``error``, ``duration_ms``;
                           ``success`` is null for a call whose end was never told
``model.call_complete``    ``agent_name``, ``turn_number``, ``call_number`` from 1 within the turn, ``success``,
                           ``duration_ms``, ``model``, ``input_tokens``, ``output_tokens``, ``error_type``
========================== ========================================================================================
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = (
    "CONTEXT_REQUEST",
    "MODEL_CALL_COMPLETE",
    "PHASE_COMPLETE",
    "TOOL_CALL_COMPLETE",
    "TOOL_CALL_START",
    "TURN_COMPLETE",
    "TURN_START",
    "WORKFLOW_COMPLETE",
    "WORKFLOW_ERROR",
    "WORKFLOW_START",
    "Outcome",
)

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
"""No event: what a redaction hook is told when the context variables of a request are shown to it."""

Outcome = Literal["completed", "failed", "handed_off", "abandoned"]
"""How a turn ended. ``success`` is true for completed and handed_off; abandoned: its end was never told."""
