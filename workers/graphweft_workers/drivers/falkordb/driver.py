"""The driver of FalkorDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, override

from graphweft_workers.ports.driver import GraphDriver

if TYPE_CHECKING:
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.dialect import GraphDialect
    from graphweft_workers.ports.graph_store import GraphStore


class FalkorDBDriver(GraphDriver):
    """FalkorDB as the graph server."""

    @property
    @override
    def dialect(self) -> GraphDialect:
        from graphweft_workers.drivers.falkordb.dialect import FALKORDB

        return FALKORDB

    @override
    def check_url(self, url: str) -> None:
        from graphweft_workers.drivers.redis_checks import check_redis_url

        check_redis_url(url)

    @override
    def make_store(
        self, url: str, *, graph_template: str, write_timeout_ms: int, beside: str | None = None
    ) -> GraphStore:
        from graphweft_workers.drivers.falkordb.store import FalkorDBStore

        return FalkorDBStore(url, graph_template=beside or graph_template, write_timeout_ms=write_timeout_ms)

    @override
    async def examine(self, url: str, advice: str) -> list[Check]:
        from graphweft_workers.drivers.falkordb import doctor

        return await doctor.examine(url, advice)

    @override
    async def write_fault(self, url: str) -> str:
        from graphweft_workers.drivers.falkordb import doctor

        return await doctor.write_fault(url)


DRIVER: Final = FalkorDBDriver()
