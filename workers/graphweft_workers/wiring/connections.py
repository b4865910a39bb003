"""What the settings name: the bus, its queue of requests, the graph store and the client's transport.

Nothing is connected when it is made. Each function raises ``InvalidSettings`` when a URL has no driver, or the package
that its driver needs is not installed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from graphweft_contracts import InvalidSettings, Layout, channels
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.signatures import SigningKey
from graphweft_workers import drivers
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.ports.driver import BusDriver, BusOptions, GraphDriver
from graphweft_workers.support.optional_dependencies import naming_extra

if TYPE_CHECKING:  # a command that reads a count need not wait for the engine to load
    from graphweft.transport import Transport
    from graphweft_workers.engine.log.keyring import Keyring
    from graphweft_workers.ports.blobs import BlobStore
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.check import Check
    from graphweft_workers.ports.dialect import GraphDialect
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.ports.request_queue import RequestQueue
    from graphweft_workers.settings.settings import Settings
    from graphweft_workers.telemetry.tracing import ServerNames


def new_layout(settings: Settings) -> Layout:
    """Return the layout of a new bus."""
    return Layout(partitions=settings.partitions, order=settings.order)


def make_bus(
    settings: Settings, *, group: str = channels.MUTATION_GROUP, archived: bool = True, over_gaps: bool = True
) -> Bus:
    """Return the bus for a group of readers. With ``archived``, trimmed entries come from the archive if there is one.

    ``over_gaps``: see ``archive.archived_bus.archived``.

    Entries are judged by their partitions and by the keys of the settings. Only what writes the archive, and what
    trims, asks for the bus alone, whose entries nobody judges.
    """
    if archived and has_archive(settings):
        from graphweft_workers.archive import archived_bus

        alone = make_bus(settings, group=group, archived=False)
        return judged_bus(settings, archived_bus.archived(alone, make_archive(settings), over_gaps=over_gaps))
    options = BusOptions(group=group, new=new_layout(settings), lease_s=settings.lease_s, own=settings.driver_options)
    driver = bus_driver(settings.bus)
    with _needed(driver, "GRAPHWEFT_BUS_URL"):
        bus = driver.make_bus(settings.bus, options)
    return judged_bus(settings, bus) if archived else bus


def judged_bus(settings: Settings, bus: Bus) -> Bus:
    """Return the bus with its entries judged by their partitions, and by the keys of the settings if these name any."""
    from graphweft_workers.engine.log.placed_bus import placed

    keyring = make_keyring(settings)
    if keyring is None:
        return placed(bus)
    from graphweft_workers.engine.log.judged_bus import judged

    return placed(judged(bus, keyring))


def make_keyring(settings: Settings) -> Keyring | None:
    """Return the keys of apps; None if the settings name none. Raises ``InvalidSettings``."""
    if settings.signing_keys is None:
        return None
    from graphweft_workers.engine.log.key_file import read_keyring

    return read_keyring(settings.signing_keys)


def signing_key(settings: Settings) -> SigningKey | None:
    """Return the key that signs what this process writes; None: nothing is signed. Raises ``InvalidSettings``."""
    if settings.signing_key is not None:
        return SigningKey.parse(settings.signing_key.get_secret_value())
    keyring = make_keyring(settings)
    return None if keyring is None else keyring.own_key("worker", SYSTEM_CLOCK.now())


def has_archive(settings: Settings) -> bool:
    """Tell whether the settings name an archive, or the embedded server's data folder holds one."""
    return settings.archive_url is not None or (settings.archive is not None and Path(settings.archive).is_dir())


def make_archive(settings: Settings, *, existing: bool = False) -> BlobStore:
    """Return the archive, which may be empty. Raises ``InvalidSettings`` if the settings name none.

    With ``existing``, which is for whoever says what is in it, also if its folder does not exist.
    """
    from graphweft_workers.archive.blobs import open_blobs

    if settings.archive is None:
        raise InvalidSettings(
            "there is no archive: set GRAPHWEFT_ARCHIVE_URL to a folder that all processes share, or to a URL such as "
            "s3://bucket/prefix, and start `graphweft run archive`"
        )
    return open_blobs(settings.archive, existing=existing)


def make_request_queue(settings: Settings, *, name: str) -> RequestQueue:
    """Return the queue of context requests for the responder ``name``."""
    driver = bus_driver(settings.bus)
    with _needed(driver, "GRAPHWEFT_BUS_URL"):
        return driver.make_request_queue(settings.bus, name=name, partitions=settings.partitions)


def make_broker(settings: Settings, *, logger: Any) -> Any:
    """Return FastStream's broker on the bus, None where there is none for it.

    It is untyped: a broker's type says what its messages are made of.
    """
    driver = bus_driver(settings.bus)
    with _needed(driver, "GRAPHWEFT_BUS_URL"):
        return driver.make_broker(settings.bus, logger=logger)


def make_graph(settings: Settings, *, live: Settings | None = None) -> GraphStore:
    """Return the graph store. With ``live``, the settings of live graphs, it is the store of second graphs.

    Only a second graph beside the live one, by the same URL, can take its place.
    """
    driver = graph_driver(settings.graph)
    with _needed(driver, "GRAPHWEFT_GRAPH_URL"):
        if live is not None and live.graph == settings.graph and live.graph_template != settings.graph_template:
            return driver.make_store(
                settings.graph,
                graph_template=live.graph_template,
                write_timeout_ms=settings.mutation_timeout_ms,
                beside=settings.graph_template,
            )
        return driver.make_store(
            settings.graph, graph_template=settings.graph_template, write_timeout_ms=settings.mutation_timeout_ms
        )


def make_transport(settings: Settings) -> Transport:
    """Return the client's side of the bus."""
    from graphweft.transports import registry

    return registry.make_transport(settings.bus, new=new_layout(settings), signing_key=signing_key(settings))


async def examine_bus(settings: Settings, advice: str) -> list[Check]:
    """Return the doctor's checks of the bus; ``advice`` is for a server that does not answer."""
    await make_bus(settings).aclose()  # says which package is missing
    return await bus_driver(settings.bus).examine(
        settings.bus, advice, new=new_layout(settings), asked=settings.model_fields_set
    )


def exposure(name: str, url: str) -> list[Check]:
    """Return the doctor's warnings about an address; ``name`` is ``bus`` or ``graph``."""
    from graphweft_workers.drivers import exposure as addresses

    return addresses.exposure(name, url)


def bus_login(settings: Settings) -> str:
    """Return the user whom the settings, or the URL of the bus, name; empty if none."""
    return settings.bus_user or urlsplit(settings.bus).username or ""


async def examine_rights(settings: Settings, role: str, app_id: str | None) -> list[Check]:
    """Return which rights of a role this process lacks on the bus."""
    user = bus_login(settings) or "default"
    return await bus_driver(settings.bus).examine_rights(settings.bus, role, app_id=app_id, user=user)


async def examine_graph(settings: Settings, advice: str) -> list[Check]:
    """Return the doctor's checks of the graph server; ``advice`` is for a server that does not answer."""
    await make_graph(settings).aclose()
    return await graph_driver(settings.graph).examine(settings.graph, advice)


async def responders(settings: Settings) -> list[str]:
    """Return the names of the responders that ask for requests. Raises ``BusUnavailable``."""
    return await bus_driver(settings.bus).responders(settings.bus)


async def request_fault(settings: Settings) -> str:
    """Return why the bus takes no context requests; see ``BusDriver.request_fault``."""
    return await bus_driver(settings.bus).request_fault(settings.bus)


def server_names(settings: Settings) -> ServerNames:
    """Return what the servers are called in spans."""
    from graphweft_workers.telemetry.tracing import ServerNames

    return ServerNames(
        bus=drivers.bus_name(settings.bus),
        graph=drivers.graph_name(settings.graph),
        graph_template=settings.graph_template,
    )


def dialects() -> tuple[GraphDialect, ...]:
    """Return the dialects of the graph servers that graphweft comes with."""
    return drivers.dialects()


def _needed(driver: BusDriver | GraphDriver, variable: str) -> contextlib.AbstractContextManager[None]:
    """Name the extra of the driver if its package is missing."""
    if driver.package is None:
        return contextlib.nullcontext()
    *modules, extra = driver.package
    return naming_extra(variable, extra, *modules)
