"""The settings whose names or values speak of a product."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator

from graphweft.secret_files import FILE, full_path, secret_of
from graphweft.transports.access import ServerLogin
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.drivers.neo4j.url import join_neo4j_url

MOST_TIMEOUT_MS: Final = 3_600_000
"""The largest limit of a query or of a request to a model: an hour. Servers and sockets refuse far larger ones."""
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

    # All settings are one model, which is built when it is used; the parts of it never are.
    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)

    bus_url: SecretStr | None = Field(
        default=None, description="Redis or Kafka URL of the bus; without it the embedded server of `data` is meant."
    )
    graph_url: SecretStr | None = Field(
        default=None,
        description="Redis URL of FalkorDB, or URL of Neo4j; without it `NEO4J_URI`, or the embedded server of `data`.",
    )
    bus_user: str | None = Field(
        default=None, description="User on the bus, with ACLs of Redis or SASL of Kafka; a login in `bus_url` precedes."
    )
    bus_password: SecretStr | None = Field(default=None, description="Password of `bus_user`.")
    bus_sasl: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] | None = Field(
        default=None, description="How `bus_user` logs in to Kafka; by default SCRAM-SHA-512."
    )
    bus_ca: Path | None = Field(
        default=None,
        description="File of the authorities that sign the certificate of the bus (`rediss://`, `kafka+ssl://`); by "
        "default those of the system.",
    )
    bus_cert: Path | None = Field(
        default=None, description="File of the certificate that the bus gets of this process."
    )
    bus_cert_key: Path | None = Field(default=None, description="File of the key of `bus_cert`, if it is not in it.")
    graph_user: str | None = Field(
        default=None, description="User on the graph server; a login in `graph_url` precedes."
    )
    graph_password: SecretStr | None = Field(default=None, description="Password of `graph_user`.")
    graph_ca: Path | None = Field(
        default=None,
        description="File of the authorities that sign the certificate of the graph server (`rediss://`, `neo4j+s://`, "
        "`bolt+s://`); by default those of the system.",
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
        le=MOST_TIMEOUT_MS,
        description="Server-side limit of each query of graphrag; without it `NEO4J_QUERY_TIMEOUT_MS`.",
    )

    _graph_password_file: str = PrivateAttr("")
    """The file that `graph_password` was read from, for a server whose driver reads it again; empty: none."""

    @property
    def driver_options(self) -> dict[str, Any]:
        """The settings of one driver only, by name."""
        return {"kafka_barrier_s": self.kafka_barrier_s, "kafka_instance": self.kafka_instance}

    @property
    def bus_access(self) -> ServerLogin:
        """The login and the certificates for the bus."""
        return ServerLogin(
            user=self.bus_user or "",
            password=_secret(self.bus_password),
            sasl=self.bus_sasl or "",
            ca=_file(self.bus_ca),
            cert=_file(self.bus_cert),
            cert_key=_file(self.bus_cert_key),
        )

    @property
    def graph_access(self) -> ServerLogin:
        """The login and the certificates for the graph server."""
        return ServerLogin(
            user=self.graph_user or "",
            password=_secret(self.graph_password),
            password_file=self._graph_password_file,
            ca=_file(self.graph_ca),
        )

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        try:
            for url, access, what in (
                (self.bus_url, self.bus_access, "bus"),
                (self.graph_url, self.graph_access, "graph"),
            ):
                if url is not None:
                    access.applied(url.get_secret_value(), what)
                elif access != ServerLogin():
                    raise ValueError(f"a login or a certificate needs {what}_url: the embedded server has none")
        except InvalidSettings as error:
            raise ValueError(str(error)) from None
        return self

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


def graph_url_of_environment() -> tuple[str, str] | None:
    """Return the graph that the variables of a product's own tools name, and the variable of its address.

    None if they name none. Raises ``InvalidSettings``.
    """
    uri, user, database = (os.environ.get(f"NEO4J_{name}", "") for name in ("URI", "USERNAME", "DATABASE"))
    password = secret_of(os.environ, "NEO4J_PASSWORD") or ""
    file = full_path(os.environ.get("NEO4J_PASSWORD" + FILE, ""))
    try:
        url = join_neo4j_url(uri, user=user, password=password, password_file=file, database=database) if uri else ""
        return (url, "NEO4J_URI") if url else None
    except InvalidSettings as error:
        raise InvalidSettings(f"NEO4J_URI, NEO4J_USERNAME, NEO4J_PASSWORD or NEO4J_DATABASE: {error}") from None


def _secret(value: SecretStr | None) -> str:
    return "" if value is None else value.get_secret_value()


def _file(value: Path | None) -> str:
    return "" if value is None else str(value.expanduser())


def _found(find: Any, value: SecretStr) -> Any:
    try:
        return find(value.get_secret_value())
    except InvalidSettings as error:
        raise ValueError(str(error)) from None
