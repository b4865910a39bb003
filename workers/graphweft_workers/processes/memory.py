"""Opens the jobs of memory of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.processes.role_metrics import job_metrics
from graphweft_workers.processes.service import Service, worker_name
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import features as jobs
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport


@asynccontextmanager
async def open_memory(settings: Settings) -> AsyncGenerator[Service]:
    """Open a worker for each job. Raises ``InvalidSettings`` when the settings ask for none."""
    jobs.check(settings)
    async with AsyncExitStack() as stack:
        graph, transport = make_graph(settings), make_transport(settings)
        stack.push_async_callback(graph.aclose)
        stack.push_async_callback(transport.aclose)
        workers: dict[str, JobWorker] = {}
        buses: dict[str, Bus] = {}
        for job in jobs.make_jobs(settings, graph):
            stack.push_async_callback(job.aclose)
            bus = buses[job.group] = make_bus(settings, group=job.group)
            stack.push_async_callback(bus.aclose)
            workers[job.group] = JobWorker(bus, transport, job, name=worker_name(settings), lease_s=settings.lease_s)

        def waiting_s() -> dict[str, float]:
            return {group: worker.account.waiting_s for group, worker in workers.items()}

        await stack.enter_async_context(job_metrics(buses, waiting_s))
        yield _JobWorkers([*workers.values()])


class _JobWorkers:
    """Several workers as one service; an error of one ends all."""

    def __init__(self, workers: Sequence[JobWorker]) -> None:
        self._workers = workers

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(worker.run())

    @property
    def interrupted(self) -> Collection[int]:
        """See ``Service.interrupted``."""
        return {number for worker in self._workers for number in worker.interrupted}

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
