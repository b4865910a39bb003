"""Runs the Neo4j connector for Kafka, whose jar the environment names, in a Kafka Connect of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.services.maven import free_port, jars

from benchmarks.hand_written import ONE, with_values
from benchmarks.harness import Died, Skip
from graphweft_workers.drivers.embedded.server import die_with_parent
from graphweft_workers.settings.settings import Settings

VARIABLE: Final = "BENCH_CONNECTOR"
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "connector": {},
    "connector, exactly once": {"neo4j.eos-offset-label": "KafkaOffset"},
    "connector, exactly once, batches of 2,000": {
        "neo4j.eos-offset-label": "KafkaOffset",
        "neo4j.batch-size": "2000",
        "consumer.override.max.poll.records": "2000",
    },
}
"""By contender: what is set beside the least that the connector needs."""
_POM: Final = Path(__file__).with_name("connect.pom.xml")
_STOP_S: Final = 20.0
_LOGGING: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def jar() -> Path:
    """Return the connector's jar. Raises ``Skip`` without one."""
    given = os.environ.get(VARIABLE)  # noqa: TID251 - of no program but this one
    if not given:
        raise Skip(f"no connector: name its jar in {VARIABLE}")
    if not Path(given).is_file():
        raise Skip(f"{VARIABLE} names no file: {given}")
    return Path(given).resolve()


@asynccontextmanager
async def connector(
    settings: Settings, topic: str, more: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the connector on a topic while the block runs. Raises ``Skip`` if it cannot be had here."""
    connector_jar = jar()
    try:
        classes = await asyncio.to_thread(jars, "kafka-connect-4.1.0", _POM)
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        raise Skip(f"no Kafka Connect: {error}") from error
    with tempfile.TemporaryDirectory(prefix="graphweft-connect-") as name:
        folder = Path(name)
        (folder / "plugins").mkdir()
        (folder / "plugins" / connector_jar.name).symlink_to(connector_jar)
        statement = with_values(
            ONE, id="event.data.call_id", tool="event.data.tool_name", success="event.data.success", chat="event.chatid"
        )
        _write(
            folder / "worker.properties",
            {
                "bootstrap.servers": settings.bus.removeprefix("kafka://"),
                "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter.schemas.enable": "false",
                "offset.storage.file.filename": str(folder / "offsets"),
                "plugin.path": str(folder / "plugins"),
                "listeners": f"http://127.0.0.1:{free_port()}",
                "consumer.auto.offset.reset": "earliest",
                "connector.client.config.override.policy": "All",
            },
        )
        _write(
            folder / "sink.properties",
            {
                "name": topic,
                "connector.class": "org.neo4j.connectors.kafka.sink.Neo4jConnector",
                "topics": topic,
                "tasks.max": "1",
                # It is stopped while a backlog is published.
                "consumer.override.session.timeout.ms": "120000",
                "neo4j.uri": settings.graph,
                "neo4j.authentication.type": "NONE",
                f"neo4j.cypher.topic.{topic}": statement,
                **more,
            },
        )
        (folder / "log4j2.properties").write_text(_LOGGING)
        output = folder / "output"
        with output.open("wb") as file:
            started = await asyncio.create_subprocess_exec(
                *("java", "-Xmx1g", f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"),
                *("-cp", f"{classes}/*", "org.apache.kafka.connect.cli.ConnectStandalone"),
                *(str(folder / "worker.properties"), str(folder / "sink.properties")),
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        try:
            yield started
        except Died as error:
            raise Died(f"the connector {error}:\n{output.read_text(errors='replace')[-3000:]}") from error
        finally:
            if started.returncode is None:
                started.terminate()
                try:
                    async with asyncio.timeout(_STOP_S):
                        await started.wait()
                except TimeoutError:
                    started.kill()
                    await started.wait()


def _write(file: Path, properties: Mapping[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
