"""``python -m tests.services.traced_agent TEXT``: an agent that makes spans, and tells graphweft what it does.

It takes two turns within one span of a conversation, by ``Client``, and says in JSON what came of them. The settings
are those of the environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from graphweft import Client, MemoryClient
from graphweft_contracts import Event

WAIT_S = 120


async def converse(text: str) -> dict[str, Any]:
    tracer = trace.get_tracer("agent")
    found: dict[str, Any] = {}
    async with Client(app_id="acme", workflow="Shop", budget_ms=WAIT_S * 1000) as client:
        with tracer.start_as_current_span("conversation") as whole:
            found["trace"] = f"{whole.get_span_context().trace_id:032x}"
            with tracer.start_as_current_span("turn 1"):
                data = {"agent_name": "Clerk", "response": text}
                done = Event.create("agent.turn_complete", app_id="acme", chat_id="c1", workflow="Shop", data=data)
                position = await client.emit(done, wait_s=WAIT_S)
            with tracer.start_as_current_span("turn 2"):
                asked: dict[str, Any] = {"agent": "Clerk", "chat_id": "c1", "context": {"said": text}}
                while (reply := await client.context(**asked, after=position)).stale_by is not None:
                    pass  # a graph server that has just started takes its time
                found |= {"text": reply.text, "reason": reply.reason, "detail": reply.detail}
                memory = MemoryClient(client, user_id="u1", read_own_writes=True)
                await memory.remember([{"role": "user", "text": text}], wait_s=WAIT_S)
                while (recalled := await memory.recall(text)).stale_by is not None:
                    pass
                found["recalled"] = len(recalled.results)
    return found


if __name__ == "__main__":
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    print(json.dumps(asyncio.run(converse(sys.argv[1]))))
    provider.shutdown()
