"""Settings from the environment. No other module of this package reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from typing_extensions import Self

from graphweft.secret_files import secret_of
from graphweft.transports.access import ServerLogin
from graphweft.transports.embedded import DEFAULT_DATA, embedded_url
from graphweft.transports.gateway.transport import GatewayTransport
from graphweft.variables import by_upper_name
from graphweft_contracts import InvalidSettings

CONTEXT_VARIABLE: Final = "GRAPHWEFT_CONTEXT"
CAPTURE_VARIABLE: Final = "GRAPHWEFT_CAPTURE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The URL of the bus, and whether context requests and the events of adapters are enabled.

    The URL is ``GRAPHWEFT_BUS_URL`` with ``GRAPHWEFT_BUS_USER``, ``_PASSWORD``, ``_SASL``, ``_CA``, ``_CERT`` and
    ``_CERT_KEY``, or else that of the embedded server of ``GRAPHWEFT_DATA``. ``GRAPHWEFT_SIGNING_KEY`` signs events and
    requests. ``GRAPHWEFT_GATEWAY_URL`` and ``GRAPHWEFT_GATEWAY_TOKEN`` name a gateway in place of the bus. Each secret
    may be in a file that ``…_FILE`` names. ``GRAPHWEFT_CONTEXT`` and ``GRAPHWEFT_CAPTURE`` are ``on`` (the default) or
    ``off``. As for workers, the case of a name makes no difference; if a variable is given twice, that in upper case
    counts.
    """

    bus_url: str = field(repr=False)
    bus_named: bool = False
    """Whether ``GRAPHWEFT_BUS_URL`` is set."""
    gateway_url: str | None = None
    gateway_token: str | None = field(default=None, repr=False)
    context: bool = True
    capture: bool = True
    signing_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environment``, by default the process's own. Raises ``InvalidSettings``."""
        values = by_upper_name(os.environ if environment is None else environment)
        given = secret_of(values, "GRAPHWEFT_BUS_URL")
        url = (
            _access(values).applied(given, "GRAPHWEFT_BUS")
            if given
            else embedded_url(Path(values.get("GRAPHWEFT_DATA") or DEFAULT_DATA))
        )
        return cls(
            bus_url=url,
            bus_named=given is not None,
            gateway_url=values.get("GRAPHWEFT_GATEWAY_URL") or None,
            gateway_token=secret_of(values, "GRAPHWEFT_GATEWAY_TOKEN"),
            context=_switch(values, CONTEXT_VARIABLE),
            capture=_switch(values, CAPTURE_VARIABLE),
            signing_key=secret_of(values, "GRAPHWEFT_SIGNING_KEY"),
        )

    def gateway(self) -> GatewayTransport | None:
        """Return the transport through the gateway of the settings; None without one. Raises ``InvalidSettings``."""
        if self.gateway_url is None:
            return None
        if self.bus_named:
            raise InvalidSettings("GRAPHWEFT_GATEWAY_URL and GRAPHWEFT_BUS_URL are both set: keep one")
        return GatewayTransport(self.gateway_url, token=self.gateway_token)


def _access(values: Mapping[str, str]) -> ServerLogin:
    return ServerLogin(
        user=values.get("GRAPHWEFT_BUS_USER") or "",
        password=secret_of(values, "GRAPHWEFT_BUS_PASSWORD") or "",
        sasl=values.get("GRAPHWEFT_BUS_SASL") or "",
        ca=values.get("GRAPHWEFT_BUS_CA") or "",
        cert=values.get("GRAPHWEFT_BUS_CERT") or "",
        cert_key=values.get("GRAPHWEFT_BUS_CERT_KEY") or "",
    )


def graphrag_enabled(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether ``GRAPHRAG_ENABLED``, or else ``GRAPH_RAG_ENABLED``, is ``true``, ``1``, ``yes`` or ``on``.

    Any other value is off, so that a runtime never connects by mistake.
    """
    values = os.environ if environment is None else environment
    value = values.get("GRAPHRAG_ENABLED") or values.get("GRAPH_RAG_ENABLED") or ""
    return value.strip().lower() in {"true", "1", "yes", "on"}


def _switch(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name) or "on"
    if value.lower() not in {"on", "off"}:
        raise InvalidSettings(f"invalid {name} {value!r}: expected on or off")
    return value.lower() == "on"
