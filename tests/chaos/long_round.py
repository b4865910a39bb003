"""A long round: everything is on, process after process is killed, users are erased, and the graph stays exact.

So do verdicts of a model, those that are taken back, and what ends with something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.services.planted_cascades import content_of
from tests.services.rules import load_rules

from graphweft import Client, MemoryClient
from graphweft_contracts import Event, QueryFailed, wire
from graphweft_rules import RuleSet
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies
from graphweft_workers.features.episodes.ontologies.files import read_ontology
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.wiring.rules import push

from .cases import WORKFLOW, Case
from .deployment import DEAD_LETTERS, ONTOLOGIES, Deployment
from .rounds import check_serial, clear, until
from .serial import Content, log_of, patiently
from .stack import Stack

__all__ = ("LongRound", "Tally", "answer_judge")

_ERASURES = 2
"""Users of each app who are erased in a round."""
_FORGERIES = DEAD_LETTERS + 6
_READERS = ("ann", "bob", "eve")
_SOME = ("Acme", "Borealis", "Oslo", "Bergen", "Globex")
_TEXTS = (
    "{reader} said sentence {number} about {some}", "I work for {some}.", "My boss is {some} Berg.", "I quit my job.",
    "Today was my first day of work at {some}.", "Yesterday was my first day of work at {some}.", "I live in {some}.",
    "I moved to {some}.", "I work as a nurse.", "My landlord is {some} Dahl.", "My supervisor is {some} Cole.",
    "My phone number is 555 {number}.",
)  # fmt: skip
"""Some end others, some depend on others, and some end others by a verdict only."""
_RELATIONS = (
    "Ada WORKS_FOR {some}", "Ada WORKS_FOR {some}", "Ada SITS_IN room {number}", "Ada HAS_BADGE badge 7",
    "Ada WORKS_FOR {some} until {number}", "Ada MOVED_TO {some}", "Ada NEIGHBOUR_OF Ben", "Ada USES laptop 4",
)  # fmt: skip
_JUDGED = ("I work for {some}.", "Today was my first day of work at {some}.")
"""The second one ends the first one by a verdict, unless a rule has ended it before."""
_JUDGED_READER = "kim"
"""Says nothing else, so that no rule ends it."""
_VERDICTS = (
    "MATCH (n:Statement {user_id: $user})-[j:JUDGED]->(o:Statement) WHERE j.verdict = 'ends' "
    "RETURN n.id, o.id, n.chat_id"
)


@dataclass(slots=True)
class Tally:
    """What rounds did: for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    events: int = 0
    memories: int = 0
    erased_users: int = 0
    verdicts_taken_back: int = 0
    left: Counter[str] = field(default_factory=Counter)
    """What the graphs of memory hold at the end: verdicts, and statements and relations that ended with others."""
    contexts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class LongRound:
    """``cases`` are apps with rules, ``memory`` is an app that only remembers, or None."""

    stack: Stack
    deployment: Deployment
    rng: random.Random
    cases: Sequence[Case]
    memory: str | None
    tally: Tally
    folder: Path
    _silent: dict[str, set[str]] = field(default_factory=dict)
    """The users of each app who say nothing any more, as they are erased."""
    _struck: bool = False
    _took_back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a verdict was taken back."""

    async def run(self, *, kills: int) -> None:
        """Run the round; raises ``AssertionError`` when something is lost, doubled, out of order or left behind."""
        self.cases[0].write_rules(self.folder / "rules")
        rules = load_rules(self.folder / "rules")
        if self.stack.graph_kind == "neo4j":
            await clear(self.stack)
        async with self.deployment.bus() as bus:
            before = {part.id: part.end for part in await patiently(bus.partitions.status)}
            for case in self.cases:
                await patiently(lambda app=case.app: push(bus, rules, app))
        try:
            await self.deployment.start()
            async with asyncio.TaskGroup() as tasks:
                for case in self.cases:
                    tasks.create_task(self._app(case))
                if self.memory is not None:
                    tasks.create_task(self._remember(self.memory))
                    tasks.create_task(self._take_back(self.memory))
                tasks.create_task(self._forge(self.cases[0].app))
                tasks.create_task(self._kill(kills))
            await self._caught_up()
            await self.deployment.stop_emitting()
            await self._caught_up()
            await self.deployment.stop()
        finally:
            self.deployment.kill()
        await self._check(rules, before)

    async def _kill(self, kills: int) -> None:
        """Kill one process after the other, each at a moment that the seed decides, and start it again.

        Half of the kills come once a verdict was taken back.
        """
        servers = {"bus": self.stack.bus_server, "graph": self.stack.graph_server}
        roles = self.deployment.roles
        try:
            for number in range(kills):
                if number == kills // 2 and self.memory is not None:
                    await until(self._has_taken_back)
                name = self.rng.choice([*roles] * 4 + [*servers])
                if name in roles:
                    roles[name].kill()
                    await asyncio.sleep(self.rng.uniform(0, 0.3))
                    roles[name].start()
                else:
                    await servers[name].kill()
                    await asyncio.sleep(self.rng.uniform(0, 0.3))
                    await servers[name].start()
                self.tally.kills[name] += 1
                await asyncio.sleep(self.rng.uniform(0, 2.0))
                self.deployment.check_alive()
        finally:
            self._struck = True

    async def _app(self, case: Case) -> None:
        """Emit events until the last kill, ask for context between them, and erase a user now and then."""
        silent = self._silent.setdefault(case.app, set())
        async with self.deployment.client(case.app) as client:
            erasures: list[asyncio.Task[None]] = []
            while not self._struck:
                for _ in range(self.rng.randint(1, 6)):
                    await client.emit(case.event(without=silent), wait_s=0)
                reply = await client.context(
                    agent="any",
                    chat_id=case.chats[0],
                    workflow=WORKFLOW,
                    user_id=case.user_of(case.chats[0]),
                    budget_ms=300,
                )
                self.tally.contexts[reply.reason or "answered"] += 1
                if len(silent) < _ERASURES and len(case.events) > 40 and self.rng.random() < 0.03:
                    user = self.rng.choice(sorted({case.user_of(chat) for chat in case.chats[1:]} - silent))
                    silent.add(user)
                    if erasures:
                        await erasures[-1]
                    erasures.append(asyncio.create_task(self._erase(client, case.app, user)))
                await asyncio.sleep(0.05)
            for erasure in erasures:
                await erasure
            for _ in range(10):
                await client.emit(case.event(without=silent), wait_s=0)
            assert await client.flush(60)
            assert client.stats.dropped == client.stats.rejected == 0

    async def _erase(self, client: Client, app: str, user: str) -> None:
        """Erase a user; the command is killed now and then, and what it began is ended by the next one."""
        assert await client.flush(60)
        kills = self.rng.randint(0, 2)
        for _ in range(40):
            command = self.deployment.command("erase", "--app", app, "--user", user, "--yes")
            waiting = asyncio.create_task(asyncio.to_thread(command.communicate))
            if kills:
                kills -= 1
                await asyncio.wait([waiting], timeout=self.rng.uniform(0.5, 5.0))
                if command.poll() is None:
                    command.kill()
                    self.tally.kills["erase"] += 1
            out, err = await waiting
            if command.returncode == 0:
                self.tally.erased_users += 1
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{user} of {app} was not erased: {out}\n{err}")

    async def _remember(self, app: str) -> None:
        """Remember what users say and what others report, and erase one of the users."""
        said = 0
        erasure: asyncio.Task[None] | None = None
        readers = list(_READERS)
        async with self.deployment.client(app) as client:
            while not self._struck:
                reader = self.rng.choice(readers)
                thread = f"{reader}-{self.rng.randint(1, 2)}"
                await self._tell(client, reader, thread, said)
                said += 1
                if erasure is None and said > 40 and self.rng.random() < 0.05:
                    user = readers.pop()
                    erasure = asyncio.create_task(self._erase(client, app, user))
                await asyncio.sleep(0.1)
            if erasure is not None:
                await erasure
            assert await client.flush(60)
        self.tally.memories += said

    async def _tell(self, client: Client, reader: str, thread: str, number: int) -> None:
        """Remember a message, or add an episode."""
        if self.rng.random() < 0.6:
            text = self.rng.choice(_TEXTS).format(number=number, reader=reader, some=self.rng.choice(_SOME))
            await self._say(client, reader, thread, f"m{number}", text)
        else:
            text = self.rng.choice(_RELATIONS).format(number=number, some=self.rng.choice(_SOME))
            data = {
                "content": content_of(text, _moment), "episode_type": "json", "schema_id": "life_v1",
                "user_id": reader, "reference_time": _moment(number),
            }  # fmt: skip
            await client.emit(self._event("episode.add", thread, data), wait_s=0)

    async def _say(self, client: Client, reader: str, thread: str, id: str, text: str) -> None:
        message = {"role": "user", "text": text, "message_id": id}
        await MemoryClient(client, user_id=reader, thread_id=thread).remember([message], wait_s=0)

    async def _take_back(self, app: str) -> None:
        """Say what a verdict ends, and take the verdict back, again and again while processes are killed."""
        said, reader = 0, _JUDGED_READER
        async with self.deployment.client(app) as client, self.deployment.graph() as graph:
            while not self._struck:
                for text in _JUDGED:
                    words = text.format(some=self.rng.choice(_SOME))
                    await self._say(client, reader, f"{reader}-1", f"{reader}{said}", words)
                    said += 1
                rows: Sequence[Sequence[Any]] = ()
                while not rows and not self._struck:
                    await asyncio.sleep(0.2)
                    with contextlib.suppress(QueryFailed):  # the app has no graph yet
                        found = await patiently(lambda: graph.read(app, _VERDICTS, {"user": reader}, timeout_s=30))
                        rows = found.rows
                for new, old, chat in rows:
                    await client.emit(self._event("statement.unjudged", chat, {"new": new, "old": old}), wait_s=0)
                    self.tally.verdicts_taken_back += 1
                    self._took_back.set()
            assert await client.flush(60)

    async def _has_taken_back(self) -> bool:
        self.deployment.check_alive()
        return self._took_back.is_set()

    def _event(self, type: str, chat_id: str, data: dict[str, Any]) -> Event:
        return Event.create(type, app_id=self.memory or "", chat_id=chat_id, data=data)

    async def _forge(self, app: str) -> None:
        """Write events in the name of an app without its key."""
        async with self.deployment.client(app, signed=False) as client:
            for number in range(_FORGERIES):
                event = Event.create(
                    "a.one", app_id=app, chat_id="forged", workflow=WORKFLOW, id=f"{app}-forged-{number}",
                    source="/forged", data={"name": "forged", "k": "forged"},
                )  # fmt: skip
                await client.emit(event, wait_s=0)
            assert await client.flush(120)

    async def _caught_up(self) -> None:
        async with self.deployment.bus() as bus:

            async def idle() -> bool:
                self.deployment.check_alive()
                return not sum(part.lag for part in await patiently(bus.partitions.status))

            await until(idle)

    async def _check(self, rules: RuleSet, before: dict[int, str]) -> None:
        await self.deployment.run("archive", "now")
        await self.deployment.run("archive", "verify")
        async with self.deployment.bus() as bus:
            whole = {number: await log_of(bus, number, before[number]) for number in before}
            letters = Counter(letter.reason for letter in await bus.dead_letters.read(limit=10_000))
        logs = {number: _said_of(entries) for number, entries in whole.items()}
        if self.memory is not None:
            await self._memory_is_serial(self.memory, whole)
        for case in self.cases:
            self._nothing_lost_or_left(case, logs.values())
            async with self.deployment.graph() as graph:
                found = await Content.of(graph, case.app)
            await check_serial(self.stack, case.app, rules, logs, found)
            self.tally.events += len(case.events)
        assert set(letters) <= {"unsigned"}, letters
        for app in [case.app for case in self.cases] + ([] if self.memory is None else [self.memory]):
            await self._same_again(app)

    async def _memory_is_serial(self, app: str, logs: Mapping[int, Sequence[Entry]]) -> None:
        """Memories, verdicts, and what ended with others are as a serial pass over the log leaves them."""
        async with self.deployment.graph() as graph:
            found = await Content.of(graph, app)
        await check_serial(self.stack, app, _memory_rules(), {at: _read(log) for at, log in logs.items()}, found)
        kinds = Counter(edge.type for edge in found.edges)
        ended = [
            label
            for node in found.nodes
            if node.properties.get("ended_why") == "depends_on"
            for label in sorted(node.labels)
        ]
        self.tally.left += Counter({"JUDGED": kinds["JUDGED"]}) + Counter(ended)

    async def _same_again(self, app: str) -> None:
        """Rebuilds in batches of two sizes, a swap and a restored export give the graph that is there."""
        if self.stack.graph_kind == "neo4j":
            return
        run = self.deployment.run
        there = await run("digest", "--app", app)
        for size in (7, 1_000):
            await run("rebuild", "--app", app, "--verify", "--swap", batch_events=size)
            assert await run("digest", "--app", app) == there
            await run("rebuild", "--app", app, "--drop")
        file = str(self.folder / f"{app}.tar")
        await run("export", "--app", app, file)
        await run("restore", file, "--as", f"{app}-restored")
        assert await run("digest", "--app", f"{app}-restored") == there

    def _nothing_lost_or_left(self, case: Case, logs: Sequence[Sequence[Entry]]) -> None:
        """The log has each event of those who are not erased, in the order of emission, and none of the others."""
        silent = self._silent[case.app]
        emitted: dict[str, list[str]] = {}
        for event in case.events:
            if event.userid not in silent:
                emitted.setdefault(event.chatid, []).append(event.data["name"])
        found: dict[str, list[str]] = {}
        for entries in logs:
            for entry in entries:
                event = wire.decode(entry.fields)
                if event.appid == case.app:
                    names = found.setdefault(event.chatid, [])
                    if event.data["name"] not in names:
                        names.append(event.data["name"])
        assert found == emitted


def answer_judge(messages: list[dict[str, Any]]) -> str:
    """Return the verdicts of a model that is always wrong alike: whatever it is asked about has ended."""
    asked = json.loads(messages[-1]["content"])
    verdicts = [{"candidate": each["number"], "verdict": "ends", "reason": ""} for each in asked["candidates"]]
    return json.dumps({"verdicts": verdicts})


def _moment(day: int) -> str:
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)).isoformat()


def _memory_rules() -> RuleSet:
    read = [read_ontology(text.encode(), Path(f"{id}.yaml"))[0] for id, text in ONTOLOGIES.items()]
    known = Ontologies(each for each in read if each is not None)
    return RuleSet({}, packs=(MemoryMutations(known.predicate_rules), EpisodeMutations(known)))


def _read(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that are not erased."""
    return [entry for entry in entries if wire.DATA in entry.fields]


def _said_of(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of events of cases; an erased event leaves an entry without fields behind in the archive."""
    return [entry for entry in entries if wire.DATA in entry.fields and wire.decode(entry.fields).source == "/chaos"]
