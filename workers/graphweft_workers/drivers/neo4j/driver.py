"""The driver of Neo4j."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, override

from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.neo4j.url import split_neo4j_url
from graphweft_workers.ports.driver import GraphDriver

if TYPE_CHECKING:
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.dialect import GraphDialect
    from graphweft_workers.ports.graph_store import GraphStore


class Neo4jDriver(GraphDriver):
    """Neo4j as the graph server."""

    package = ("neo4j", "neo4j")

    @property
    @override
    def dialect(self) -> GraphDialect:
        from graphweft_workers.drivers.neo4j.dialect import NEO4J

        return NEO4J

    @override
    def check_url(self, url: str) -> None:
        try:
            split_neo4j_url(url)
        except InvalidSettings as error:
            raise ValueError(str(error)) from None

    @override
    def make_store(
        self, url: str, *, graph_template: str, write_timeout_ms: int, beside: str | None = None
    ) -> GraphStore:
        from graphweft_workers.drivers.neo4j.store import Neo4jStore

        return Neo4jStore(url, graph_template=graph_template, write_timeout_ms=write_timeout_ms, beside=beside)

    @override
    async def examine(self, url: str, advice: str) -> list[Check]:
        from graphweft_workers.drivers.neo4j import doctor

        return await doctor.examine(url)


DRIVER: Final = Neo4jDriver()
