"""The variables of OpenTelemetry that decide whether a role makes spans. Its SDK reads all others itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_OTLP: Final = "otlp"
_HTTP: Final = "http/protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceVariables:
    """Whether spans are exported by OTLP, and what the variables ask for that graphweft cannot do."""

    on: bool
    faults: tuple[str, ...] = ()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables. An empty one counts as not set."""
        values = os.environ if environment is None else environment
        if values.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls(on=False)
        exporters = [name.strip() for name in values.get(_EXPORTER, "").split(",") if name.strip()]
        if exporters and _OTLP not in exporters:
            others = [name for name in exporters if name not in {"none", "graphweft"}]
            fault = f"{_EXPORTER}: a role exports spans by {_OTLP} only, so it makes none"
            return cls(on=False, faults=(fault,) if others else ())
        on = bool(exporters) or any(values.get(name) for name in _ENDPOINTS)
        protocol = next((values[name] for name in _PROTOCOLS if values.get(name)), _HTTP)
        if on and protocol != _HTTP:
            fault = f"{_PROTOCOLS[1]}: a role speaks {_HTTP} only; give it an endpoint that does, usually on port 4318"
            return cls(on=on, faults=(fault,))
        return cls(on=on)
