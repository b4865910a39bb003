"""The events that adapters emit, the same for all runtimes, and the fields of their data.

Every event has ``data.context``, the runtime's context variables, and the ids of its chat as attributes. Unknown fields
are absent. Durations are milliseconds of a monotonic clock.

========================== ========================================================================================
``workflow.start``         no further fields
``workflow.phase_complete`` ``phase_name`` (the agent that hands over, or the runtime's own phase), ``next_phase``
``workflow.complete``      ``status`` ("COMPLETE"), ``duration`` in seconds, ``outputs``
``workflow.error``         ``error_type``, ``error_message``; ``agent_name`` and ``turn_number`` if a turn failed
``agent.turn_start``       ``agent_name``, ``turn_number`` from 1 within the chat, while the process remembers the chat
``agent.turn_complete``    the same, ``success``, ``outcome`` (see ``Outcome``), ``response``, ``duration_ms``,
                           ``context_id`` of the agent's context, ``handed_to``, ``error_type``, ``error_message``;
                           both have ``agent_id`` if the runtime has one
``tool.call_start``        ``tool_name``, ``call_id``, ``arguments``; ``agent_name`` and ``turn_number`` of the turn
``tool.call_complete``     the same without ``arguments``, ``success``, ``result``, ``error``, ``duration_ms``;
                           ``success`` is null for a call whose end was not reported
``model.call_complete``    ``agent_name``, ``turn_number``, ``call_number`` from 1 within the turn, ``success``,
                           ``duration_ms``, ``model``, ``input_tokens``, ``output_tokens``, ``error_type``
========================== ========================================================================================
"""

from __future__ import annotations

from typing import Final, Literal

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

Outcome = Literal["completed", "failed", "handed_off", "abandoned"]
"""How a turn ended. ``success`` is true for completed and handed_off. abandoned: its end was not reported."""
