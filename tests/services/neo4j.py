"""A real Neo4j Community server for tests: a process of its own, on a port that stays, with its files in a folder.

The jars come from Maven Central. What runs is the server's kernel with Bolt and Cypher 5, as the distribution has it,
without its scripts and its HTTP side.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import neo4j
from tests.services.class_archive import ClassArchive
from tests.services.maven import cache, free_port, jars, require_java
from tests.services.waiting import until_sync

from graphweft_workers.drivers.neo4j.groups import Groups
from graphweft_workers.drivers.neo4j.store import Neo4jStore

__all__ = ("Neo4jServer", "make_archive", "sharing")

_HERE: Final = Path(__file__).parent / "neo4j"
_STOP_S: Final = 60.0
_JAVA: Final = (
    *("java", "-Xmx512m", "-XX:+UseSerialGC"),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "java.lang", "sun.nio.ch")),
)
_QUICK: Final = (
    *("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=192m"),
    *("-XX:Tier3InvocationThreshold=50", "-XX:Tier3MinInvocationThreshold=20"),
    *("-XX:Tier3CompileThreshold=300", "-XX:Tier3BackEdgeThreshold=8000"),
)
"""With the first option alone, compiled code has 48 MB: a server of many queries fills it, and compiles again. With
the others, the JVM compiles after a quarter of the usual calls: new statements take an eighth less CPU."""
_ARCHIVED: Final = (
    "CREATE CONSTRAINT one IF NOT EXISTS FOR (n:A) REQUIRE n.k IS UNIQUE",
    "CREATE INDEX IF NOT EXISTS FOR (n:B) ON (n.k)",
    "CREATE FULLTEXT INDEX words IF NOT EXISTS FOR (n:A) ON EACH [n.text]",
    "CREATE VECTOR INDEX near IF NOT EXISTS FOR (n:A) ON (n.v) OPTIONS {indexConfig: {`vector.dimensions`: 2}}",
    "CALL db.awaitIndexes(60)",
    "CALL dbms.components() YIELD versions, edition",
    "SHOW CONSTRAINTS YIELD name RETURN name",
    "SHOW INDEXES YIELD labelsOrTypes, properties, type WHERE type = 'RANGE' RETURN labelsOrTypes, properties",
    "UNWIND $rows AS row CALL (row) { WITH row[0] AS k, row[1] AS m MERGE (a:A {k: k}) ON CREATE SET a.n = 1 "
    "ON MATCH SET a.n = a.n + 1 SET a += m, a.text = 'words ' + k, a.v = [1.0, 2.0] MERGE (b:B {k: k}) "
    "MERGE (a)-[r:R]->(b) SET r.last = k FOREACH (x IN [1, 2] | MERGE (:C {k: x})) }",
    "MATCH (a:A {k: $k})-[r:R]->(b) WHERE b:B AND NOT EXISTS { (b)-[:S]->() } WITH a, count(r) AS n, "
    "collect(b.k) AS ks OPTIONAL MATCH (c:C) WHERE c.k IN ks OR c.k > 1 WITH a, n, ks, max(c.k) AS most "
    "SET a.seen = coalesce(a.seen, 0) + n, a.most = CASE WHEN most IS NULL THEN 0 ELSE most END "
    "RETURN a, reduce(s = '', k IN ks | s + toString(k)) AS text ORDER BY text DESC SKIP 0 LIMIT 5",
    "MATCH p = (a:A)-[*1..2]-(b) WHERE all(n IN nodes(p) WHERE n.k IS NOT NULL) RETURN DISTINCT labels(b) AS "
    "l, properties(b) AS m, elementId(b) AS i, [x IN relationships(p) | type(x)] AS t "
    "UNION ALL MATCH (b) RETURN labels(b) AS l, {} AS m, '' AS i, [] AS t",
    "CALL db.index.fulltext.queryNodes('words', 'words') YIELD node, score RETURN node.k, score",
    "CALL db.index.vector.queryNodes('near', 2, [1.0, 2.0]) YIELD node, score RETURN node.k, score",
    "MATCH (a:A {k: $k})-[r]->() DELETE r WITH DISTINCT a REMOVE a.text DETACH DELETE a",
    "MATCH (n) DETACH DELETE n",
)
"""Queries that load the classes of what tests do."""


class Neo4jServer:
    """``start`` after ``stop`` or ``kill`` goes on with the same data on the same port.

    The calls block: use ``asyncio.to_thread`` where clients are to go on meanwhile. The server also ends when the
    process that started it dies, however that happens. With ``log_in`` clients have to name the user ``neo4j`` and its
    password, which is ``neo4j`` and has to be changed first. It starts and compiles queries in half the time unless it
    is to be ``fast`` once it is warm, as for measurements. ``options`` of ``java`` take the place of the archive.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log_in: bool = False,
        port: int | None = None,
        fast: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.uri = f"bolt://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._driver: neo4j.Driver | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._fast = fast
        self._options = options
        self._arguments = [str(folder / "data"), str(self.port), *(["auth"] if log_in else [])]

    @property
    def log(self) -> Path:
        """What the server printed; its own log is below ``data``."""
        return self.folder / "server.log"

    def start(self) -> None:
        """Start it and wait until it answers. Skips, or fails with ``CI=true``, when Java or the jars are missing."""
        options = [] if self._fast else [*_QUICK, *(self._options or _archive().options())]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*_JAVA, *options, "-cp", _class_path(), "Neo4jServer", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests alone
            )
        # Its input ends with our process.
        self._watch = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$0"', str(self.process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        started = self.process

        def is_ready() -> bool:
            assert started.poll() is None, f"Neo4j did not start:\n{self.log.read_text(errors='replace')[-3000:]}"
            return b"ready" in self.log.read_bytes().splitlines()

        try:
            until_sync(is_ready, why=f"Neo4j is ready, by {self.log}")
        except BaseException:
            self.kill()
            raise

    def run(self, statement: str, **params: Any) -> list[list[Any]]:
        """Return the rows of a statement. All calls share a connection, until the server ends."""
        if self._driver is None:
            self._driver = neo4j.GraphDatabase.driver(self.uri, notifications_min_severity="OFF")
        with self._driver.session() as session:
            return session.run(cast("LiteralString", statement), params).values()

    def empty(self) -> None:
        """Delete all nodes; indexes stay."""
        self.run("MATCH (n) DETACH DELETE n")

    def stop(self) -> None:
        """Shut it down as an operator would; nothing happens when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without warning, as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it stand still, with its connections open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on after ``pause``."""
        self._signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
        process, self.process = self.process, None
        watch, self._watch = self._watch, None
        if watch is not None:  # first: the number of an ended process may be another's soon
            watch.kill()
            watch.wait()
            assert watch.stdin is not None
            watch.stdin.close()
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


def sharing(store: Neo4jStore, often: int = 0) -> Neo4jStore:
    """Let mutations share statements after so many writes: a worker does after some more, and tests have few."""
    store._groups = Groups(often)
    return store


@functools.cache
def _class_path() -> str:
    """Return the jars of the server; its main class is compiled once."""
    require_java()
    found = [str(jar) for jar in sorted(jars("neo4j-5.26.12", _HERE / "pom.xml").glob("*.jar"))]
    source = _HERE / "Neo4jServer.java"
    main = cache() / f"neo4j-main-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.jar"
    if not main.exists():
        with tempfile.TemporaryDirectory(dir=main.parent, prefix=".neo4j-main-") as scratch:
            compiler = ["java", "-m", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17"]
            subprocess.run([*compiler, "-cp", os.pathsep.join(found), "-d", scratch, str(source)], check=True)
            jar = Path(scratch) / "main.jar"
            with zipfile.ZipFile(jar, "w") as file:  # an archive of classes takes no folders
                file.write(Path(scratch) / "Neo4jServer.class", "Neo4jServer.class")
            jar.replace(main)  # who compiles it at the same time makes the same
    return os.pathsep.join([str(main), *found])


def _archive() -> ClassArchive:
    return ClassArchive(name="neo4j", contents=[_class_path(), *_JAVA, *_QUICK, *_ARCHIVED])


def make_archive() -> None:
    """Make the archive of the server's classes; first queries, too, take half the work with it."""

    def run(options: list[str], folder: Path) -> None:
        server = Neo4jServer(folder / "server", options=options)
        server.start()
        try:
            with neo4j.GraphDatabase.driver(server.uri, notifications_min_severity="OFF") as driver:
                for query in _ARCHIVED:
                    driver.execute_query(query, k="a", rows=[["a", {"x": 1}], ["b", {}]])
        finally:
            server.stop()

    _archive().make(run)
