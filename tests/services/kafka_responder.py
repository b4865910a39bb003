"""``python -m tests.services.kafka_responder URL NAME``: a responder on Kafka whose replies are its name and ``n``.

Its session is longer than any test, so the group of responders does not notice that it died.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Final

from graphweft_contracts import ContextReply, ContextRequest
from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue
from graphweft_workers.injection.responder import InjectionResponder

__all__ = ("SESSION_S",)

SESSION_S: Final = 600.0


async def main(url: str, name: str) -> None:
    """Answer until SIGTERM."""

    async def answer(request: ContextRequest) -> ContextReply:
        return ContextReply(id=request.id, text=f"{name} {request.context['n']}")

    async with contextlib.aclosing(KafkaRequestQueue(url, name=name, partitions=4, session_s=SESSION_S)) as queue:
        responder = InjectionResponder(queue, answer)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, responder.stop)
        await responder.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
