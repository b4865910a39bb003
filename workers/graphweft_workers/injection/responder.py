"""The injection responder: takes requests from a queue, has them answered, and sends the replies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import structlog
from pydantic import ValidationError

from graphweft_contracts import ContextReply, ContextRequest, Transient, wire
from graphweft_rules import Ruleset
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.injection.answering import answer
from graphweft_workers.injection.requests import RequestQueue, Waiting

__all__ = ("InjectionResponder",)

logger = structlog.get_logger("graphweft.injection")

_LAST_BACKOFF_S: Final = 2.0


class InjectionResponder:
    """Answers requests from a queue, many at a time, until ``stop`` is called."""

    def __init__(
        self,
        queue: RequestQueue,
        graph: GraphStore,
        rules: Ruleset,
        *,
        query_timeout_s: float = 5.0,
        max_requests: int = 64,
    ) -> None:
        self._queue = queue
        self._graph = graph
        self._rules = rules
        self._query_timeout_s = query_timeout_s
        self._free = max_requests
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self.answered = 0
        self.expired = 0

    def stop(self) -> None:
        """Ask the responder to finish the requests in hand and return from ``run``."""
        self._stopping.set()

    async def run(self) -> None:
        """Answer until ``stop``. Outages of the bus are waited out."""
        logger.info("responder_started", workflows=sorted(self._rules.workflows))
        wait_s = 0.1
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping.is_set():
                while not self._free:  # backpressure: what nobody works on stays on the bus, for other replicas
                    self._freed.clear()
                    await self._freed.wait()
                try:
                    waiting = await self._queue.next(self._free)
                except Transient as error:
                    logger.warning("requests_interrupted", error=str(error), retry_after_s=wait_s)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, _LAST_BACKOFF_S)
                    continue
                wait_s = 0.1
                for one in waiting:
                    self._free -= 1
                    tasks.create_task(self._serve(one))
        logger.info("responder_stopped", answered=self.answered, expired=self.expired)

    async def _serve(self, waiting: Waiting) -> None:
        try:
            await self._answer(waiting)
            await self._queue.done(waiting.token)
        except Transient as error:
            logger.warning("reply_lost", error=str(error))
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
            with contextlib.suppress(Transient):
                await self._queue.done(waiting.token)
        finally:
            self._free += 1
            self._freed.set()

    async def _answer(self, waiting: Waiting) -> None:
        try:
            request = ContextRequest.model_validate_json(waiting.body)
        except ValidationError as error:
            # It says neither who asks nor until when, so nobody can be answered.
            logger.warning("request_invalid", error=wire.explain(error))
            return
        if request.deadline_ms <= time.time() * 1000:
            self.expired += 1
            return
        try:
            reply = await answer(request, self._rules, self._graph, query_timeout_s=self._query_timeout_s)
        except Exception as error:  # a defect must not cost the caller its whole budget
            logger.exception("answer_failed", workflow=request.workflow, agent=request.agent)
            reply = ContextReply(id=request.id, reason="internal_error", detail=type(error).__name__, partial=True)
        await self._queue.reply(request.reply_to, reply)
        self.answered += 1
        for item in reply.missing:
            logger.warning(
                "block_missing", rule=item.rule, query=item.query, reason=item.reason, detail=item.detail,
                app_id=request.app_id, workflow=request.workflow, agent=request.agent,
            )  # fmt: skip
