"""The settings of the console."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from graphweft_workers.drivers.settings import DriverSettings


class ConsoleSettings(DriverSettings):
    """The settings of the console, in ``graphweft up`` and as a role."""

    console: bool = Field(default=True, description="Whether `graphweft up` offers the console.")
    console_port: int = Field(
        default=8766, ge=0, le=65_535, description="Port of the console of `graphweft up`; 0 takes a free one."
    )
    console_token: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="Token of an operator for the console: it shows all apps, and writes if `console_write` is set.",
    )
    console_tokens: Path | None = Field(
        default=None,
        description="YAML file with the hashes of the tokens that the console accepts, like that of the gateway.",
    )
    console_hosts: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9.-]{1,253}( *, *[A-Za-z0-9.-]{1,253})*$",
        description="Names under which the console may be reached, separated by commas, besides localhost and IP "
        "addresses.",
    )
    console_write: bool = Field(
        default=False,
        description="Whether the console may retry, correct and drop dead letters, with a token that has `admin`.",
    )

    @property
    def console_names(self) -> frozenset[str]:
        """The names of ``console_hosts``, in lower case."""
        return frozenset(name for part in (self.console_hosts or "").split(",") if (name := part.strip().lower()))
