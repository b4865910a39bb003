"""The settings whose names or values speak of a product."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.drivers.neo4j.url import join_neo4j_url

GRAPH_VARIABLES: Final = "GRAPHWEFT_GRAPH_URL (or NEO4J_URI)"
"""The variables that name a graph, for messages."""
UNPREFIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "index_name": ("NEO4J_INDEX_NAME",),
    "vector_index_name": ("NEO4J_VECTOR_INDEX_NAME",),
    "fulltext_index_name": ("NEO4J_FULLTEXT_INDEX_NAME",),
    "graphrag_query_timeout_ms": ("NEO4J_QUERY_TIMEOUT_MS",),
}
"""Settings, and the variables that give them where nothing else does: the first that is set."""


class DriverSettings(BaseModel):
    """The settings of the drivers that graphweft comes with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bus_url: SecretStr | None = Field(
        default=None, description="Redis or Kafka URL of the bus; without it the embedded server of `data` is meant."
    )
    graph_url: SecretStr | None = Field(
        default=None,
        description="Redis URL of FalkorDB, or URL of Neo4j; without it `NEO4J_URI`, or the embedded server of `data`.",
    )
    kafka_barrier_s: float = Field(
        default=20.0, ge=1, le=600, description="Longest that a rebalance of Kafka waits for a worker's batch in hand."
    )
    kafka_instance: str | None = Field(
        default=None,
        description="Name of a static member of the Kafka group, another for each worker: one that is back under it "
        "within lease_s keeps its partitions, and one that stops keeps them as long.",
    )
    index_name: str | None = Field(
        default=None, description="Index of a search that names none, whatever its type; without it `NEO4J_INDEX_NAME`."
    )
    vector_index_name: str = Field(
        default="chunkEmbeddings",
        description="Vector index of a search that names none; without it `NEO4J_VECTOR_INDEX_NAME`.",
    )
    fulltext_index_name: str = Field(
        default="search_chunks",
        description="Fulltext index of a search that names none; without it `NEO4J_FULLTEXT_INDEX_NAME`.",
    )
    graphrag_query_timeout_ms: int = Field(
        default=5_000,
        ge=1,
        description="Server-side limit of each query of graphrag; without it `NEO4J_QUERY_TIMEOUT_MS`.",
    )

    @property
    def driver_options(self) -> dict[str, Any]:
        """The settings of one driver only, by name."""
        return {"kafka_barrier_s": self.kafka_barrier_s, "kafka_instance": self.kafka_instance}

    @field_validator("bus_url")
    @classmethod
    def _bus(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _found(bus_driver, value).check_url(value.get_secret_value())
        return value

    @field_validator("graph_url")
    @classmethod
    def _graph(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _found(graph_driver, value).check_url(value.get_secret_value())
        return value


def graph_url_of_environment() -> str | None:
    """Return the graph that the variables of a product's own tools name, if they do. Raises ``InvalidSettings``."""
    uri, user, password, database = (
        os.environ.get(f"NEO4J_{name}", "") for name in ("URI", "USERNAME", "PASSWORD", "DATABASE")
    )
    try:
        return join_neo4j_url(uri, user=user, password=password, database=database) if uri else None
    except InvalidSettings as error:
        raise InvalidSettings(f"NEO4J_URI, NEO4J_USERNAME, NEO4J_PASSWORD or NEO4J_DATABASE: {error}") from None


def _found(find: Any, value: SecretStr) -> Any:
    try:
        return find(value.get_secret_value())
    except InvalidSettings as error:
        raise ValueError(str(error)) from None
