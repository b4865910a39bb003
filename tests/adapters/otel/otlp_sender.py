"""Sends runs of agents by OTLP, and prints how many were made: ``otlp_sender.py ENDPOINT COUNT``.

Between two lines of output it waits for a line of input. In the last line stand the ids of the spans.
"""

import json
import sys

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

endpoint, count = sys.argv[1], int(sys.argv[2])
provider = TracerProvider()
exporter = OTLPSpanExporter(endpoint, compression=Compression.Gzip, timeout=100)
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=50, max_queue_size=100_000))
tracer = provider.get_tracer("sender")
ids: dict[str, str] = {}
for number in range(count):
    chat = {"gen_ai.conversation.id": f"c{number % 7}"}
    about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Planner", **chat}
    with tracer.start_as_current_span("invoke_agent Planner", attributes=about) as agent:
        about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", **chat}
        with tracer.start_as_current_span("execute_tool look", attributes=about) as call:
            pass
    for span in (agent, call):
        context = span.get_span_context()
        ids[f"{context.trace_id:032x}-{context.span_id:016x}"] = f"c{number % 7}"
    if number % 50 == 49:
        print(number + 1, flush=True)
        sys.stdin.readline()
assert provider.force_flush(100_000)
print(json.dumps(ids), flush=True)
