"""Where settings come from: the settings file, files with secrets, the environment, variables of other tools.

Each is a layer: values by the name of the setting, and where each stands. pydantic-settings is not used: see
``docs/decisions/0084-settings-redaction-and-probes.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr

from graphweft.secret_files import FILE, full_path, read_secret_file
from graphweft.variables import PREFIX, by_upper_name
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.settings import UNPREFIXED, graph_url_of_environment
from graphweft_workers.settings.service_variables import service_variables
from graphweft_workers.text.yaml_model import read_tree

_MOST_BYTES: Final = 64_000
"""A folder that others wrote may hold such a file, and a byte of YAML takes a kilobyte to read."""


class SettingValue(NamedTuple):
    """A value of a setting, and the variable, or the line of a file, that gives it."""

    value: Any
    origin: str
    file: str = ""
    """The file that the value was read from, if it is a secret in one."""


class _Tool(NamedTuple):
    """Another tool, whose variables complete a setting that names it: they are for nothing else."""

    setting: str
    name: str
    model: str
    """The variable with the model, for a setting that is the name alone."""
    others: Mapping[str, tuple[str, ...]]


_TOOLS: Final = (
    _Tool(
        "embedder", "azure", "AZURE_AI_EMBEDDING_NAME",
        {
            "embedder_url": ("AZURE_AI_PROJECT_ENDPOINT",),
            "embedder_api_key": ("AZURE_AI_API_KEY", "AZURE_OPENAI_API_KEY"),
        },
    ),
    _Tool(
        "extractor", "graphiti", "MODEL_NAME",
        {"extractor_url": ("OPENAI_BASE_URL",), "extractor_api_key": ("OPENAI_API_KEY",)},
    ),
)  # fmt: skip
_UNPREFIXED: Final[Mapping[str, tuple[str, ...]]] = {
    **UNPREFIXED,
    "graphrag_enabled": ("GRAPHRAG_ENABLED", "GRAPH_RAG_ENABLED"),
    "graph_expand_max_hops": ("GRAPH_EXPAND_MAX_HOPS",),
    "graph_expand_limit": ("GRAPH_EXPAND_LIMIT",),
    "graph_max_results": ("GRAPH_MAX_RESULTS",),
}
"""Settings, and the variables that give them if nothing else does: the first that is set."""


def own_variables() -> dict[str, str]:
    """Return the variables with our prefix that are for us, by their names in upper case, whose values come first."""
    others = service_variables(os.environ)
    return by_upper_name({name: value for name, value in os.environ.items() if name not in others})


def of_file(path: Path) -> dict[str, SettingValue]:
    """Return the settings of a file. Raises ``InvalidSettings``."""
    from graphweft_rules.files.tree import KeyTable, plain  # most commands find no such file

    try:
        size = path.stat().st_size
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from error
    if size > _MOST_BYTES:
        raise InvalidSettings(f"{path}: a settings file has at most {_MOST_BYTES:,} bytes")
    root = read_tree(path, holds_secrets=True)
    if not isinstance(root, KeyTable):
        raise InvalidSettings(f"{path}: expected `name: value` lines at the top")
    return {name: SettingValue(plain(entry.value), f"{path}:{entry.key.line}") for name, entry in root.entries.items()}


def of_secret_files(
    secrets: Collection[str], variables: dict[str, str], in_file: dict[str, SettingValue]
) -> dict[str, SettingValue]:
    """Return the secrets that ``GRAPHWEFT_X_FILE``, or ``x_file`` in the settings file, name a file of.

    The names of the files are removed from both. Raises ``InvalidSettings`` if the secret is given beside its file.
    """
    found: dict[str, SettingValue] = {}
    for name in secrets:
        variable, setting = as_variable(name) + FILE, f"{name}{FILE.lower()}"
        named = variables.pop(variable, "")
        path = in_file.pop(setting, None)
        if named:
            if variables.get(as_variable(name)):
                raise InvalidSettings(f"{as_variable(name)} and {variable} are both set: keep one")
            found[name] = SettingValue(read_secret_file(Path(named), variable), variable, full_path(named))
        elif path is not None and path.value is not None:
            if name in in_file and in_file[name].value is not None:
                raise InvalidSettings(f"{path.origin}: {name} and {setting} are both given: keep one")
            found[name] = SettingValue(
                read_secret_file(Path(str(path.value)), f"{path.origin}: {setting}"),
                path.origin,
                full_path(str(path.value)),
            )
    return found


def of_other_tools(chosen: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Return the settings that the variables of other tools give, because nothing in ``chosen`` does.

    Raises ``InvalidSettings`` if the variables of a graph server contradict each other.
    """
    found: dict[str, SettingValue] = {}

    def take(name: str, variables: tuple[str, ...]) -> None:
        variable = next(filter(os.environ.get, variables), None)
        if variable is not None and _value(chosen, name) is None:
            found[name] = SettingValue(os.environ[variable], variable)

    if _value(chosen, "graph_url") is None and (named_graph := graph_url_of_environment()):
        graph_url, variable = named_graph
        found["graph_url"] = SettingValue(SecretStr(graph_url), variable)
    for name, variables in _UNPREFIXED.items():
        take(name, variables)
    for tool in _TOOLS:
        named = str(_value(chosen, tool.setting))
        if named.partition(":")[0] != tool.name:
            continue
        if named == tool.name and (model := os.environ.get(tool.model)):
            found[tool.setting] = SettingValue(f"{named}:{model}", tool.model)
        for name, variables in tool.others.items():
            take(name, variables)
    return found


def _value(chosen: Mapping[str, SettingValue], name: str) -> Any:
    return chosen[name].value if name in chosen else None


def http_url(value: str) -> str:
    """Return the base URL of an endpoint. Raises ``ValueError`` for anything else."""
    msg = "invalid base URL: expected http://host[:port]/path or https://…, without user, password, ? and #"
    try:
        parts = urlsplit(value)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port, or no IPv6 address
        raise ValueError(msg) from None
    if not sound or re.search(r"[\s@?#\\]", value) or not value.isascii():
        raise ValueError(msg)
    return value


def header_value(value: str) -> str:
    """Return a key without the line end that a file of secrets adds. Raises ``ValueError`` for no key."""
    value = value.strip()
    if not re.fullmatch(r"[!-~]+", value, re.ASCII):
        msg = "invalid key: only ASCII letters, digits and signs are allowed, without blanks"
        raise ValueError(msg)
    return value


def header_pairs(text: str) -> dict[str, str]:
    """Return the headers in ``name=value,name=value``, by name. Raises ``ValueError``, which does not quote them."""
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not (equals and re.fullmatch(r"[A-Za-z0-9-]+", name.strip()) and re.fullmatch(r"[ -~]+", value)):
            msg = "invalid headers: expected name=value,name=value in ASCII"
            raise ValueError(msg)
        found[name.strip()] = value.strip()
    return found


def as_field(variable: str) -> str:
    """Return the setting of a variable."""
    return variable[len(PREFIX) :].lower()


def as_variable(name: str) -> str:
    """Return the variable of a setting."""
    return PREFIX + name.upper()
