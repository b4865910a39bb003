"""What the hooks add to events is declared by the contracts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.shared.kit import IDS, Bus
from tests.declared_fields import check_declared

from graphweft import Client, GraphInjectionHooks
from graphweft_contracts import LIFECYCLE


@pytest.mark.parametrize("type", sorted(LIFECYCLE))
async def test_the_contracts_declare_what_hooks_add(type: str) -> None:
    bus = Bus()
    ids: dict[str, Any] = IDS
    hooks = GraphInjectionHooks(Client("redis://127.0.0.1:1", transport=bus), budget_ms=120_000, **ids)
    required = {name: "x" for name, field in LIFECYCLE[type].model_fields.items() if field.is_required()}
    await hooks.before_agent_turn("Planner", {})
    await hooks.on_event(type, {"phase": "plan"}, required, agent_name="Planner")
    await hooks.aclose()
    [event] = bus.events
    assert event.agent == "Planner"
    assert event.data.get("context_id") == ("ctx-1" if type == "agent.turn_complete" else None)
    check_declared(bus.events)
