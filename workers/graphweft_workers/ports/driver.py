"""What a driver offers: a ``BusDriver`` for a product that carries events, a ``GraphDriver`` for one that holds graphs.

A driver is found by the scheme of the URL in the settings. graphweft's own are listed in ``graphweft_workers.drivers``.
Another package adds one by an entry point whose name is the scheme: in the group ``graphweft.buses`` a ``BusDriver``,
in ``graphweft.graphs`` a ``GraphDriver``. A client finds its transport in the group ``graphweft.transports``, see
``graphweft.transports.registry``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphweft_contracts import InvalidSettings

if TYPE_CHECKING:  # a driver is imported by commands that need no engine
    from graphweft_contracts import Layout
    from graphweft_contracts.layout import OwnPartition
    from graphweft_contracts.rules_log import Activation
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.dialect import GraphDialect
    from graphweft_workers.ports.event_log import CommittedPosition
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.ports.request_queue import RequestQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class BusOptions:
    """What the settings say about a bus beside its URL."""

    group: str
    """The group of readers that the bus is opened for."""
    new: Layout
    """The layout of a new bus."""
    lease_s: float
    """Seconds after which the partitions of a dead worker are taken over."""
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The settings of graphweft's own drivers, by name. Other packages put theirs into the query of the URL."""


class BusDriver(ABC):
    """A product that carries events, dead letters and context requests."""

    package: tuple[str, ...] | None = None
    """The packages that the driver needs, and last the extra that installs them; None: a worker has them anyway."""
    no_join: str = (
        "this kind of bus cannot go on behind an archive: keep the archive, and give the bus an archive of its own "
        "(GRAPHWEFT_ARCHIVE_URL)"
    )
    """Why a bus that lost its end cannot go on behind the archive, and what to do; empty if it can, by ``join``."""

    @abstractmethod
    def check_url(self, url: str) -> None:
        """Raise ``ValueError`` for an invalid URL. The message does not quote it: it may hold a password."""

    @abstractmethod
    def make_bus(self, url: str, options: BusOptions) -> Bus:
        """Return the bus at a URL; nothing is connected yet. Raises ``ModuleNotFoundError`` without its package."""

    @abstractmethod
    def make_request_queue(self, url: str, *, name: str, partitions: int) -> RequestQueue:
        """Return the queue of context requests for the responder ``name``; nothing is connected yet."""

    def make_broker(self, url: str, *, logger: Any) -> Any:
        """Return FastStream's broker for the URL; nothing is connected yet.

        None, the default: FastStream has no broker for the product. A service then runs without subscribers of its
        user's own.
        """
        return None

    def broker_errors(self) -> tuple[type[Exception], ...]:
        """Return the errors that FastStream's broker raises while the server is unavailable."""
        return ()

    @abstractmethod
    async def examine(self, url: str, advice: str, *, new: Layout, asked: Collection[str]) -> list[Check]:
        """Return the doctor's checks; the first, named ``bus``, says whether the server answers. Never raises.

        ``advice`` is for a server that does not answer, ``new`` for a new bus. ``asked`` are the fields of ``new`` that
        the settings name; see ``layout_checks``. With a second check named ``bus topic``, the
        doctor asks the bus for partitions, workers and dead letters only if that one is ``ok``; ``warn`` says that the
        bus is new.
        """

    async def examine_rights(self, url: str, role: str, *, app_id: str | None, user: str) -> list[Check]:
        """Try the rights of a role, without any effect; return which of them ``user`` lacks. Never raises.

        The default cannot tell.
        """
        return []

    @abstractmethod
    async def responders(self, url: str) -> list[str]:
        """Return the names of the responders that ask for requests. Raises ``BusUnavailable``."""

    async def memory_ratio(self, url: str) -> float | None:
        """Return which share of its memory limit the server uses; None, the default, if it has none.

        Raises ``BusUnavailable``.
        """
        return None

    async def write_fault(self, url: str) -> str:
        """Return why the server refuses writes, as with a full disk, with the next step. Raises ``BusUnavailable``.

        The default knows none.
        """
        return ""

    async def request_fault(self, url: str) -> str:
        """Return why the bus takes no context requests, with the next step. Raises ``BusUnavailable``.

        The default knows none. Faults of partitions are in ``PartitionStatus``.
        """
        return ""

    async def mend(self, url: str, partition: int | None) -> str:
        """Mend a partition that takes no events, or with None the queue of context requests, and lose no event.

        Return what was done, empty if there was nothing to mend, as by default. Raises ``BusUnavailable``, and
        ``InvalidSettings`` for a partition that does not exist.
        """
        return ""

    async def join(
        self, url: str, partition: int, *, fork: CommittedPosition, end: CommittedPosition, moved: bool
    ) -> None:
        """Let the entries of a partition after ``fork`` follow on those up to ``end``, and remove those before.

        ``end`` is the last entry of the archive, and the next one gets the number after it. All groups of readers go
        back to the fork, and that of the workers that apply events gets its note. With ``moved``, the entries get new
        offsets, which are behind ``end``. All of it happens, or nothing. Raises ``BusUnavailable``, and
        ``InvalidSettings`` while somebody reads the partition. The default cannot.
        """
        raise InvalidSettings(self.no_join)

    async def restore_partitions(self, url: str, own: Mapping[str, OwnPartition]) -> None:
        """Give apps the partitions of their own back that the bus has forgotten.

        Raises ``BusUnavailable``, and ``InvalidSettings`` if the bus has given such a number, or the app, another one
        since. The default cannot.
        """
        raise InvalidSettings(self.no_join)

    async def replace_activations(self, url: str, there: Sequence[Activation], merged: Sequence[Activation]) -> None:
        """Replace the activations of rules, which are ``there``, and announce none. Raises like ``join``."""
        raise InvalidSettings(self.no_join)


class GraphDriver(ABC):
    """A product that holds graphs."""

    package: tuple[str, str] | None = None
    """The package that the driver needs, and the extra that installs it; None: a worker has it anyway."""

    @property
    @abstractmethod
    def dialect(self) -> GraphDialect:
        """The Cypher of its servers."""

    @abstractmethod
    def check_url(self, url: str) -> None:
        """Raise ``ValueError`` for an invalid URL. The message does not quote it: it may hold a password."""

    @abstractmethod
    def make_store(
        self, url: str, *, graph_template: str, write_timeout_ms: int, beside: str | None = None
    ) -> GraphStore:
        """Return the store at a URL; nothing is connected yet. Raises ``ModuleNotFoundError`` without its package.

        ``graph_template`` is the name of an app's graph, which holds ``{app_id}``. With ``beside``, the name of second
        graphs, the store holds these: beside the graphs of ``graph_template``, which stay as they are.
        """

    @abstractmethod
    async def examine(self, url: str, advice: str) -> list[Check]:
        """Return the doctor's checks; the first, named ``graph``, says whether the server answers. Never raises.

        ``advice`` is for a server that does not answer.
        """

    async def write_fault(self, url: str) -> str:
        """Return why the server refuses writes, as with a full disk, with the next step. Raises ``GraphUnavailable``.

        The default knows none.
        """
        return ""
