"""The quotas of one app: how much it may send and keep."""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

PROPERTY_NAMES: Final = 10_000
"""The names of properties that a graph may have unless the policies say otherwise."""

type QuotaName = Literal["events_per_s", "bytes_per_s", "stored_bytes", "dead_letters", "graph_bytes", "property_names"]
QUOTAS: Final[tuple[QuotaName, ...]] = get_args(QuotaName.__value__)


class Quotas(BaseModel):
    """The quotas of one app. None is no quota."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    events_per_s: float | None = Field(default=None, ge=1e-6, le=1e9, description="Events a second, at each gateway.")
    bytes_per_s: float | None = Field(
        default=None, ge=1, le=1e12, description="Bytes of events a second, at each gateway."
    )
    stored_bytes: int | None = Field(default=None, gt=0, description="About the bytes of its events and dead letters.")
    dead_letters: int | None = Field(default=None, gt=0, description="Its dead letters.")
    graph_bytes: int | None = Field(
        default=None, gt=0, description="Memory of its graph on the server, its indexes included; counted in MiB."
    )
    property_names: int | None = Field(
        default=PROPERTY_NAMES, gt=0, description="Names of properties in its graph, also of deleted ones."
    )

    def limit(self, quota: QuotaName) -> float | None:
        """Return a quota by its name."""
        value: float | None = getattr(self, quota)
        return value

    def over(self, other: Quotas) -> Quotas:
        """Return these quotas; those that are not set are those of ``other``."""
        return other.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
