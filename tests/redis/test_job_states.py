"""What the jobs of memory wait for and leave out is seen in ``status``, in ``doctor``, in metrics and on the bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.services.buses import applied
from tests.services.models import Failure, ModelServer
from tests.services.rules import rule_set
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import QueryFailed, channels, wire
from graphweft_workers.console.operation import operation
from graphweft_workers.doctor import examine
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.embedding.openai import OpenAIEmbedder
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.log.read import EXTRACT
from graphweft_workers.engine.usage.waits import JOB
from graphweft_workers.features.memory.consolidation import ConsolidationJob
from graphweft_workers.features.memory.embedding import EmbeddingJob
from graphweft_workers.features.memory.extractive_summariser import ExtractiveSummariser
from graphweft_workers.features.memory.judge import StatementJudge
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.features.memory.verdicts import VerdictsJob
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.processes.memory import open_memory
from graphweft_workers.reports.report import Notice, TextTable
from graphweft_workers.reports.status import StatusReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import JobTiming, Timing
from graphweft_workers.telemetry import metrics
from graphweft_workers.wiring.connections import make_bus
from graphweft_workers.wiring.job_states import MODELS
from graphweft_workers.wiring.status import read_status

pytestmark = pytest.mark.integration

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
APP = "shop"
GROUPS = {
    channels.MEMORY_GROUP, channels.CONSOLIDATION_GROUP, channels.VERDICTS_GROUP, channels.EPISODES_GROUP,
}  # fmt: skip
RULES = rule_set()
FIRST_DAY = "Today was my first day of work at Borealis."
"""No rule says that this ends another job: a judge is asked."""


def said(number: int, *texts: str) -> Event:
    return Event.create(
        "memory.add", app_id=APP, chat_id="c1", id=f"e{number}", source="/test", time=T0 + timedelta(minutes=number),
        data={"messages": [{"role": "user", "text": text} for text in texts], "user_id": "u1"},
    )  # fmt: skip


def episode(number: int) -> Event:
    return Event.create(
        "episode.add", app_id=APP, chat_id="c1", id=f"p{number}", source="/test", time=T0 + timedelta(minutes=number),
        data={"content": "It is so: «Ann OWNS Shop»", "name": f"n{number}", "user_id": "u1"},
    )  # fmt: skip


async def put(transport: Transport, *events: Event) -> None:
    await transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in events])


def settings_of(url: str, folder: Path, models: str | None = None) -> Settings:
    asked: dict[str, Any] = {}
    if models is not None:
        asked = {
            "embedder": "openai:m", "summariser": "openai:m", "judge": "openai:m", "extractor": "graphiti:m",
            "memory_summarise_after": 3, "memory_summarise_keep": 1, "extractor_attempts": 1,
            **{f"{each}_url": models for each in ("embedder", "summariser", "judge", "extractor")},
        }  # fmt: skip
    return Settings(bus_url=SecretStr(url), graph_url=SecretStr(url), rules=folder / "workflows", **asked)


@asynccontextmanager
async def running(service: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(service.run())
    try:
        yield
    finally:
        service.stop()
        await task


async def jobs_of(settings: Settings, bus: Bus) -> dict[str, dict[str, Any]]:
    return {each["group"]: each for each in (await read_status(settings, bus)).to_json()["jobs"]}


def reasons(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what jobs wait for; that the mutation workers are behind passes by itself."""
    waits = {group: [each["reason"] for each in job["waits"]] for group, job in found.items()}
    return {group: each[0] for group, each in waits.items() if each and "have not applied" not in each[0]}


FAILURES: dict[str, tuple[Failure, str]] = {
    "no key": (Failure.error(401, "invalid_api_key"), "401"),
    "down": (Failure.error(503), "503"),
    "rubbish": (Failure.garbage(), ""),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_each_job_that_waits_is_seen_with_its_reason(
    bus: Bus, graph: FalkorDBStore, transport: Transport, url: str, tmp_path: Path, model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch, name: str,
) -> None:  # fmt: skip
    patient = partial(JobWorker, timing=Timing(jobs=JobTiming(record_s=120)))  # else a busy bus may keep a record
    monkeypatch.setattr("graphweft_workers.processes.memory.JobWorker", patient)
    model_server.always, words = FAILURES[name]
    model_server.answer = lambda _: json.dumps({"summary": "What the model says.", "verdicts": []})
    settings, without = settings_of(url, tmp_path, model_server.url), settings_of(url, tmp_path)
    async with working(bus, graph, RULES), open_memory(settings) as memory:
        events = [said(1, "I work for Acme."), said(2, "I like tea."), said(3, FIRST_DAY), episode(4)]
        async with running(memory):
            await put(transport, *events)
            found = await until(
                lambda: jobs_of(settings, bus), lambda found: reasons(found).keys() == GROUPS, why="all jobs wait"
            )
            assert all(words in reason for reason in reasons(found).values()), reasons(found)
            assert all(job["lag"] > 0 for job in found.values())
            assert all("goes on by itself" in each["next"] for job in found.values() for each in job["waits"])
            for group, model in MODELS.items():
                assert f"if you change GRAPHWEFT_{model.upper()}" in found[group]["waits"][0]["next"]
            assert (await jobs_of(without, bus)).keys() == GROUPS, "settings without models hide nothing"
            assert {group for (group,), waiting_s in metrics.JOB_WAITING.values().items() if waiting_s > 0} == GROUPS
            report = [*StatusReport(status=await read_status(settings, bus)).parts()]
            assert "Jobs of memory" in [each.title for each in report if isinstance(each, TextTable)]
            notices = " ".join(each.text for each in report if isinstance(each, Notice))
            assert all(f"the job {group} waits in" in notices for group in GROUPS)
            checks = {check.name: check for check in await examine(settings)}
            assert {(checks[group].state, "waits since" in checks[group].found) for group in GROUPS} == {("warn", True)}
            assert {(checks[name].state, "a job waits" in checks[name].found) for name in MODELS.values()} == {
                ("warn", True)
            }
            if name == "down":
                model_server.always = None
                found = await until(
                    lambda: jobs_of(settings, bus),
                    lambda found: not reasons(found) and not any(job["lag"] for job in found.values()),
                    why="all go on",
                )
                assert not any(metrics.JOB_WAITING.values().values())
    assert not [key for key in (await bus.usage.after(None)).found if key.startswith(JOB)], "workers that ended"


async def test_a_job_that_nobody_runs_is_seen(
    bus: Bus, graph: FalkorDBStore, transport: Transport, url: str, tmp_path: Path
) -> None:
    settings = settings_of(url, tmp_path, "http://127.0.0.1:9/v1")
    await put(transport, said(1, "I live in Oslo."))
    status = StatusReport(status=await read_status(settings, bus))
    notices = " ".join(each.text for each in status.parts() if isinstance(each, Notice))
    assert notices.count("start `graphweft run memory`") == len(GROUPS)
    layout = await bus.partitions.layout()
    of_all = operation(status.status, layout, None, all_apps=True)
    assert {each["group"] for each in of_all["jobs"]} == GROUPS
    assert "jobs" not in operation(status.status, layout, APP, all_apps=False), "others' apps are named in reasons"


class Unreadable:
    """A graph that refuses each query, as after a limit of time."""

    settle_s = 0.0

    def __init__(self, inner: FalkorDBStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apps(self) -> list[str]:
        return []

    async def read(self, *_: Any, **__: Any) -> Any:
        raise QueryFailed("the query took too long", code="timeout")


class NoJudge(StatementJudge):
    model = "none"

    async def judge(self, *_: Any) -> Any:
        raise AssertionError("nothing was read")

    async def aclose(self) -> None:
        pass


async def test_what_jobs_leave_out_is_counted_by_app_and_reason(
    bus: Bus, graph: FalkorDBStore, transport: Transport, url: str, tmp_path: Path, model_server: ModelServer
) -> None:
    settings = settings_of(url, tmp_path)
    broken: Any = Unreadable(graph)
    model_server.refuses = lambda text: "poison" in text
    jobs = [
        EmbeddingJob(OpenAIEmbedder(model_server.url, "m", api_key=None)),
        ConsolidationJob(
            broken, make_bus(settings), ExtractiveSummariser(), after=2, keep=1,
            retention=Retention(broken, keep_days=1), tick_s=0.05,
        ),
        VerdictsJob(broken, make_bus(settings), NoJudge()),
    ]  # fmt: skip
    await put(transport, said(1, "poison", "I live in Oslo."), said(2, "more poison"))

    def skipped(found: dict[str, dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
        return {group: [(each["app_id"], each["reason"]) for each in job["skips"]] for group, job in found.items()}

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(working(bus, graph, RULES))
        for job in jobs:
            of_job = await stack.enter_async_context(aclosing(make_bus(settings, group=job.group)))
            await stack.enter_async_context(aclosing(job))
            async with running(JobWorker(of_job, transport, job, name="j")):
                await applied(of_job)
                if isinstance(job, ConsolidationJob):
                    await until(
                        lambda: jobs_of(settings, bus),
                        lambda found: found[channels.CONSOLIDATION_GROUP]["skips"][0]["count"] >= 3,
                        why="retention is counted beside the thread",
                    )
    found = await jobs_of(settings, bus)
    assert skipped(found) == {
        channels.MEMORY_GROUP: [(APP, "text_refused")],
        channels.CONSOLIDATION_GROUP: [(APP, "query_failed")],
    }
    [refused] = found[channels.MEMORY_GROUP]["skips"]
    assert refused["count"] == 2
    assert await letter_count(bus.dead_letters) == 2, "what the judge could not read comes back by a retry"
    letters = await bus.dead_letters.read(limit=10)
    assert {(each.reason, each.rule) for each in letters} == {("extraction_failed", EXTRACT[0])}
    report = StatusReport(status=await read_status(settings, bus)).parts()
    assert f"{APP}: 2 texts have no vector" in " ".join(each for each in report if isinstance(each, str))
