"""Real Kafka brokers (KRaft) as processes of their own on 127.0.0.1: one alone, or several of a cluster."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.services.class_archive import ClassArchive
from tests.services.maven import free_port, jars
from tests.services.waiting import until_sync

__all__ = ("KafkaCluster", "KafkaServer", "Member", "Secure", "make_archive")

_POM: Final = Path(__file__).with_name("kafka.pom.xml")
_READY: Final = b"Kafka Server started"
_STOP_S: Final = 30.0
_JAVA: Final = ("java", "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING: Final = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=500
num.network.threads=1
num.io.threads=2
"""


_SECURE: Final = """\
listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=SASL_SSL://127.0.0.1:{port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,SCRAM-SHA-256
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  username="admin" password="{password}" {users};
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:ANONYMOUS
"""


_MEMBER: Final = """\
node.id={number}
broker.rack=rack-{number}
controller.quorum.voters={voters}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=3000
"""
"""A broker that ended loses its partitions to others within about three seconds."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the brokers of a cluster; each is a controller too."""

    number: int
    cluster: str
    controllers: tuple[int, ...]
    """Their ports; the first one is that of number 1."""


@dataclass(frozen=True, kw_only=True)
class Secure:
    """TLS, a login by SASL for each user, and no right that is not given. ``admin`` may do everything."""

    authority: Path
    certificate: Path
    users: tuple[str, ...]
    password: str = "secret"
    scram: str = "scram"
    """A user who logs in by SCRAM."""


class KafkaServer:
    """One broker; its files are in ``folder`` and its port stays the same over restarts.

    The calls block: use ``asyncio.to_thread`` where clients are to go on meanwhile. The broker also ends when the
    process that started it dies, however that happens.
    """

    def __init__(self, folder: Path, secure: Secure | None = None, *, member: Member | None = None) -> None:
        self.folder = folder
        self._secure = secure
        self._member = member
        self._classes = _class_path()
        self._options = _archive().options()
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """The broker as the settings name one."""
        return f"kafka://{self.bootstrap}"

    def start(self) -> None:
        """Start the broker on the data that is there, and return when it serves clients."""
        settings = self.folder / "server.properties"
        if not settings.exists():
            member = self._member
            controller = free_port() if member is None else member.controllers[member.number - 1]
            text = _SETTINGS.format(port=self._port, controller=controller, folder=self.folder)
            if member is not None:
                voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(member.controllers, 1))
                text += _MEMBER.format(number=member.number, voters=voters)
            scram: list[str] = []
            if (secure := self._secure) is not None:
                users = " ".join(f'user_{user}="{secure.password}"' for user in ("admin", *secure.users))
                text += _SECURE.format(
                    port=self._port, controller=controller, password=secure.password, users=users,
                    certificate=secure.certificate, authority=secure.authority,
                )  # fmt: skip
                for kind in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
                    scram += ["--add-scram", f"{kind}=[name={secure.scram},password={secure.password}]"]
            settings.write_text(text)
            (self.folder / "log4j2.properties").write_text(_LOGGING)
            cluster = _cluster_id() if member is None else member.cluster
            arguments = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings), *scram)
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(settings)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests alone
            )
        # Its input ends with our process.
        self._watch = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        started = self._process

        def is_ready() -> bool:
            assert started.poll() is None, f"Kafka did not start:\n{log.read_text(errors='replace')[-4000:]}"
            return _READY in log.read_bytes()

        try:
            until_sync(is_ready, why=f"Kafka is ready, by {log}")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker in order; a broker that does not run is fine."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker with ``kill -9``; what it had not written to disk yet is in the system's cache and stays."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start again, with the same data on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the broker's clock: connections stay open and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after ``pause``."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        watch, self._watch = self._watch, None
        if watch is not None:  # first: the number of an ended process may be another's soon
            watch.kill()
            watch.wait()
            assert watch.stdin is not None
            watch.stdin.close()
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _java(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [*_JAVA, *self._options, logging, "-cp", self._classes, *arguments]


class KafkaCluster:
    """Three brokers, each in a rack of its own. The calls block."""

    def __init__(self, folder: Path) -> None:
        controllers = tuple(free_port() for _ in range(3))
        cluster = _cluster_id()
        self.brokers: list[KafkaServer] = []
        for number in range(1, 4):
            (own := folder / f"broker-{number}").mkdir()
            member = Member(number=number, cluster=cluster, controllers=controllers)
            self.brokers.append(KafkaServer(own, member=member))

    @property
    def url(self) -> str:
        """All brokers, as the settings name them."""
        return f"kafka://{','.join(each.bootstrap for each in self.brokers)}"

    def start(self) -> None:
        """Start the brokers together: one alone waits for a majority."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(KafkaServer.start, self.brokers))

    def kill(self) -> None:
        """End all of them."""
        for each in self.brokers:
            each.kill()


def _cluster_id() -> str:
    return str(uuid4())


@functools.cache
def _class_path() -> str:
    return os.pathsep.join(map(str, sorted(jars("kafka-4.1.0", _POM).glob("*.jar"))))


def _archive() -> ClassArchive:
    return ClassArchive(name="kafka", contents=[_class_path(), *_JAVA])


def make_archive() -> None:
    """Make the archive of the broker's classes."""

    def run(options: list[str], folder: Path) -> None:
        server = KafkaServer(folder)
        server.start()
        server.stop()
        server._options = options  # not before: the tool that formats the folder would write the archive
        server.start()
        server.stop()

    _archive().make(run)
