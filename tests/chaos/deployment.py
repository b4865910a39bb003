"""A deployment with every feature on: all roles, keys, quotas, a trimming archive, an embedder, a judge, retention."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr
from tests.services import planted_cascades, planted_conversations
from tests.services.environment import clean_environment

from graphweft import Client
from graphweft_workers.drivers.embedded.server import die_with_parent
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph

from .stack import LEASE_S, Role, Stack

__all__ = ("DEAD_LETTERS", "ONTOLOGIES", "Deployment")

DEAD_LETTERS = 12
"""The quota of an app."""
ONTOLOGIES = {"life_v1": planted_cascades.ONTOLOGY, "claims_v1": planted_conversations.ONTOLOGY}
_ROLES = {"w1": "mutation", "w2": "mutation", "memory": "memory", "archive": "archive", "responder": "injection"}
_PAST = "2026-01-01T00:00:00Z"


class Deployment:
    """The roles on the servers of a stack; each app of ``apps`` has a key of its own, and nobody may write without.

    ``judge`` is the URL of a model that compares statements. Only the roles know it: a replay asks no model.
    """

    def __init__(self, stack: Stack, folder: Path, apps: Sequence[str], judge: str) -> None:
        self._stack = stack
        self._folder = folder
        keys = [{"id": name, "app_id": name, "secret": f"{name}{name}".ljust(32, "-"), "from": _PAST} for name in apps]
        self._signing_keys = {key["app_id"]: f"{key['id']}:{key['secret']}" for key in keys}
        worker = {"id": "worker", "role": "worker", "secret": "w" * 32, "from": _PAST}
        (folder / "keys.yaml").write_text(json.dumps({"keys": [worker, *keys], "required_from": _PAST}))
        quotas = {
            "stored_bytes": 200_000_000, "dead_letters": DEAD_LETTERS,
            "graph_bytes": 500_000_000, "property_names": 500,
        }  # fmt: skip
        (folder / "no-rules").mkdir(exist_ok=True)
        (folder / "apps.yaml").write_text(json.dumps({"default": {"quotas": quotas}}))
        (folder / "ontologies").mkdir(exist_ok=True)
        for id, text in ONTOLOGIES.items():
            (folder / "ontologies" / f"{id}.yaml").write_text(text)
        self._judge = {"judge": "openai:recorded", "judge_url": judge}
        self._settings = {
            "bus_url": stack.bus_server.url,
            "graph_url": stack.graph_server.url,
            "rules": str(folder / "no-rules"),
            "partitions": 4,
            "lease_s": LEASE_S,
            "archive_url": str(folder / "archive"),
            "archive_every_s": 1.0,
            "archive_trim": True,
            "snapshot_events": 200,
            "signing_keys": str(folder / "keys.yaml"),
            "apps": str(folder / "apps.yaml"),
            "embedder": "hash:32",
            "memory_summarise_after": 12,
            "memory_summarise_keep": 6,
            "memory_keep_count": 40,
            "log_format": "json",
        }
        self.roles = {
            name: Role(role, self._environment(name), folder / f"{name}.log") for name, role in _ROLES.items()
        }

    async def start(self) -> None:
        """Start every role that does not run."""
        for role in self.roles.values():
            if not role.running:
                role.start()

    def kill(self) -> None:
        """End every role as a crash would."""
        for role in self.roles.values():
            if role.running:
                role.kill()

    async def stop(self) -> None:
        """Ask every role to finish; raises ``AssertionError`` with its log if one does so in another way than asked."""
        await self._stop(*(name for name, role in self.roles.items() if role.running))

    async def stop_emitting(self) -> None:
        """Ask the role that emits events of its own to finish: it does so while it ends, too. See ``stop``."""
        await self._stop("memory")

    async def _stop(self, *names: str) -> None:
        for name, code in zip(names, await asyncio.gather(*(self.roles[name].stop() for name in names)), strict=True):
            assert code in (0, -signal.SIGTERM), f"{name} ended with {code}: {self.roles[name].log.read_text()[-8000:]}"

    def check_alive(self) -> None:
        """Raise ``AssertionError`` with the log of a role that has ended by itself."""
        for name, role in self.roles.items():
            assert role.ended in (None, -signal.SIGKILL), f"{name} ended: {role.log.read_text()[-8000:]}"

    @asynccontextmanager
    async def client(self, app: str, *, signed: bool = True) -> AsyncIterator[Client]:
        """Give a producer of an app."""
        url = self._stack.bus_server.url_behind(self._stack.bus_server.producers)
        client = Client(bus_url=url, app_id=app, signing_key=self._signing_keys[app] if signed else None)
        try:
            yield client
        finally:
            await client.aclose()

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """Give the bus with the archive behind it, as operators read it."""
        bus = make_bus(self._of_operators())
        try:
            yield bus
        finally:
            await bus.aclose()

    @asynccontextmanager
    async def graph(self) -> AsyncIterator[GraphStore]:
        graph = make_graph(self._of_operators())
        try:
            yield graph
        finally:
            await graph.aclose()

    def command(self, *arguments: str, **settings: int) -> subprocess.Popen[str]:
        """Start a command of ``graphweft`` as an operator does."""
        return subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self._environment("operator", **settings), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self._folder,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - runs before any thread of the child
        )  # fmt: skip

    async def run(self, *arguments: str, **settings: int) -> str:
        """Run a command and return what it printed; raises ``AssertionError`` unless its exit code is 0."""
        process = self.command(*arguments, **settings)
        out, err = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, f"graphweft {' '.join(arguments)}: {process.returncode}\n{out}\n{err}"
        return out

    def _environment(self, name: str, **more: int) -> dict[str, str]:
        stack = self._stack
        settings = self._settings | {"worker_name": name} | more
        if name in _ROLES:  # an operator's command has no proxy between
            settings |= self._judge | {
                "bus_url": stack.bus_server.url_behind(stack.bus_server.workers),
                "graph_url": stack.graph_server.url_behind(stack.graph_server.workers),
            }
        return clean_environment() | {
            f"GRAPHWEFT_{key.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in settings.items()
        }

    def _of_operators(self) -> Settings:
        secret = {name: SecretStr(str(self._settings[name])) for name in ("bus_url", "graph_url")}
        return Settings(**(self._settings | secret))  # type: ignore[arg-type]
