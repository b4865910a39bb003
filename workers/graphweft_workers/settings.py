"""Everything that can be set, from the environment (``GRAPHWEFT_*``) and ``graphweft.yaml``; the environment wins.

No other module of this package reads the environment. An unknown key stops the start: a misspelled setting that is
silently ignored is found in production.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, override

import yaml
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from graphweft.location import DEFAULT_DATA, embedded_url
from graphweft_contracts import InvalidSettings

__all__ = ("CONFIG_FILE", "Settings")

CONFIG_FILE: Final = "graphweft.yaml"
_PREFIX: Final = "GRAPHWEFT_"


class Settings(BaseSettings):
    """The settings of every graphweft command; field ``x_y`` is ``GRAPHWEFT_X_Y`` or ``x_y:`` in graphweft.yaml."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    data: Path = Field(default=DEFAULT_DATA, description="Folder of the embedded server (`graphweft up --data`).")
    bus_url: SecretStr | None = Field(
        default=None, description="Redis URL of the bus; without it the embedded server of `data` is meant."
    )
    graph_url: SecretStr | None = Field(
        default=None, description="Redis URL of FalkorDB; without it the embedded server of `data` is meant."
    )
    rules: Path = Field(default=Path("workflows"), description="Folder of workflows with graph_injection.yaml files.")
    graph_template: str = Field(
        default="mozaiks_{app_id}", pattern=r"\{app_id\}", description="Name of an app's graph; holds {app_id}."
    )
    partitions: int = Field(default=4, ge=1, le=256, description="Event streams of a new bus; later fixed by the bus.")
    worker_name: str | None = Field(
        default=None, description="Name under which a worker holds its partitions; by default host and process."
    )
    batch_events: int = Field(default=200, ge=1, le=10_000, description="Most events of one micro-batch.")
    mutation_timeout_ms: int = Field(default=5_000, ge=1, description="Server-side limit of one mutation query.")
    query_timeout_ms: int = Field(default=5_000, ge=1, description="Server-side limit of one injection query.")
    max_requests: int = Field(default=64, ge=1, description="Context requests that one responder works on at a time.")
    fsync: Literal["always", "everysec"] = Field(
        default="always", description="Embedded server: write each change to disk at once, or every second."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @classmethod
    def load(cls, *, file: Path | None = None, **overrides: Any) -> Self:
        """Read environment and file; ``overrides`` (not None) win. Raises ``InvalidSettings`` naming each fault.

        ``file`` defaults to ``GRAPHWEFT_CONFIG``, then to ``graphweft.yaml`` in the working folder if there is one.
        """
        path = file or (Path(named) if (named := os.environ.get(f"{_PREFIX}CONFIG")) else None)
        if path is not None and not path.is_file():
            raise InvalidSettings(f"the settings file {str(path)!r} does not exist")
        path = path or Path(CONFIG_FILE)
        values: dict[str, Any] = _file_values(path) if path.is_file() else {}
        known = set(cls.model_fields)
        faults = [_unknown(f"{path}: {name!r}", name, known, str) for name in values if name not in known]
        faults += [
            _unknown(f"the environment variable {name!r}", name[len(_PREFIX) :].lower(), known, _as_variable)
            for name in os.environ
            if name.startswith(_PREFIX) and name != f"{_PREFIX}CONFIG" and name[len(_PREFIX) :].lower() not in known
        ]
        if faults:
            raise InvalidSettings("\n".join(faults))
        given = {name: value for name, value in overrides.items() if value is not None}
        from_environment = {name for name in known if _as_variable(name) in os.environ}
        try:
            return cls(**{**{k: v for k, v in values.items() if k not in from_environment}, **given})
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']} (set by {_as_variable(str(fault['loc'][0]))} "
                f"or in {path})"
                for fault in error.errors(include_input=False, include_url=False)
            ]
            raise InvalidSettings("\n".join(lines)) from error

    @override
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take explicit values first, then the environment."""
        return (init_settings, env_settings)

    def as_environment(self) -> dict[str, str]:
        """Return the process's environment with the given settings in it, for a child that is to run with the same."""
        values = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
        for name in self.model_fields_set:
            value: Any = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, Path):
                value = value.expanduser().resolve()
            if value is not None:
                values[_as_variable(name)] = str(value)
        return values

    @property
    def embedded(self) -> bool:
        """Whether the bus is the embedded server."""
        return self.bus_url is None

    @property
    def bus(self) -> str:
        """The URL of the bus, which may hold a password: not for logs."""
        return self.bus_url.get_secret_value() if self.bus_url else embedded_url(self.data)

    @property
    def graph(self) -> str:
        """The URL of the graph server, which may hold a password: not for logs."""
        return self.graph_url.get_secret_value() if self.graph_url else embedded_url(self.data)


def _file_values(path: Path) -> dict[str, Any]:
    try:
        values: Any = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} is no YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidSettings(f"{path}: expected `name: value` lines at the top")
    return {str(name): value for name, value in values.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _as_variable(name: str) -> str:
    return _PREFIX + name.upper()


def _unknown(where: str, name: str, known: set[str], spell: Any) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {spell(close[0])!r}?" if close else f"known: {', '.join(sorted(spell(k) for k in known))}"
    return f"{where} is no setting; {hint}"
