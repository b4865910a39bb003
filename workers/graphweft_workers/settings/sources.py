"""Where settings come from: the environment, the settings file, files with secrets, variables of other tools."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from graphweft.secret_files import FILE, read_secret_file
from graphweft.variables import PREFIX, by_upper_name
from graphweft_contracts import InvalidSettings
from graphweft_workers.settings.service_variables import service_variables
from graphweft_workers.text.yaml_model import fault_without_value

_MOST_BYTES: Final = 64_000
"""A folder that others wrote may hold such a file, and a byte of YAML takes a kilobyte to read."""


def own_variables() -> dict[str, str]:
    """Return the variables with our prefix that are for us, by their names in upper case, whose values come first."""
    others = service_variables(os.environ)
    return by_upper_name({name: value for name, value in os.environ.items() if name not in others})


def file_values(path: Path) -> dict[str, Any]:
    """Return the settings of a file. Raises ``InvalidSettings``."""
    import yaml  # most commands find no such file

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidSettings(f"{path}: a settings file has at most {_MOST_BYTES:,} bytes")
        text = path.read_text("utf-8-sig")
        tree: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        values: Any = yaml.safe_load(text)
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:  # its text quotes the line, which may hold a password
        raise InvalidSettings(f"{path}{fault_without_value(error)}") from None
    except RecursionError:
        raise InvalidSettings(f"{path}: invalid YAML: it has too many levels") from None
    except (yaml.YAMLError, ValueError) as error:  # bytes that are no text
        raise InvalidSettings(f"{path}: invalid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidSettings(f"{path}: expected `name: value` lines at the top")
    names = [key.value for key, _ in tree.value]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidSettings(f"{path}: repeated setting {', '.join(map(repr, twice))}: keep one")
    return {str(name): value for name, value in values.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def secrets_of_files(
    fields: Mapping[str, FieldInfo], variables: dict[str, str], values: dict[str, Any], path: Path
) -> dict[str, str]:
    """Return the secrets that ``GRAPHWEFT_X_FILE``, or ``x_file`` in the settings file, name a file of.

    The names of the files are removed from both. Raises ``InvalidSettings`` if the secret is given beside its file.
    """
    found: dict[str, str] = {}
    for name, field in fields.items():
        if field.annotation != SecretStr | None:
            continue
        variable, setting = as_variable(name) + FILE, f"{name}{FILE.lower()}"
        named = variables.pop(variable, "")
        in_file = values.pop(setting, None)
        if named:
            if variables.get(as_variable(name)):
                raise InvalidSettings(f"{as_variable(name)} and {variable} are both set: keep one")
            found[name] = read_secret_file(Path(named), variable)
        elif in_file is not None:
            if values.get(name) is not None:
                raise InvalidSettings(f"{path}: {name} and {setting} are both given: keep one")
            found[name] = read_secret_file(Path(str(in_file)), f"{path}: {setting}")
    return found


def azure_settings(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the variables of Azure's own tools add to the embedder ``azure``."""
    if chosen.get("embedder") != "azure" and not str(chosen.get("embedder")).startswith("azure:"):
        return {}
    added: dict[str, Any] = {}
    if chosen["embedder"] == "azure" and (name := os.environ.get("AZURE_AI_EMBEDDING_NAME")):
        added["embedder"] = f"azure:{name}"
    taken = {
        "embedder_url": (("AZURE_AI_PROJECT_ENDPOINT",), http_url),
        "embedder_api_key": (("AZURE_AI_API_KEY", "AZURE_OPENAI_API_KEY"), header_value),
    }
    return added | _taken(chosen, taken)


def graphiti_settings(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the variables of a Graphiti server add to the extractor ``graphiti``."""
    extractor = str(chosen.get("extractor"))
    if extractor != "graphiti" and not extractor.startswith("graphiti:"):
        return {}
    added: dict[str, Any] = {}
    if extractor == "graphiti" and (name := os.environ.get("MODEL_NAME")):
        added["extractor"] = f"graphiti:{name}"
    taken = {
        "extractor_url": (("OPENAI_BASE_URL",), http_url),
        "extractor_api_key": (("OPENAI_API_KEY",), header_value),
    }
    return added | _taken(chosen, taken)


def _taken(
    chosen: Mapping[str, Any], taken: Mapping[str, tuple[tuple[str, ...], Callable[[str], str]]]
) -> dict[str, str]:
    """Return settings that nothing else gives, each from the first of its variables that is set, and checked."""
    added: dict[str, str] = {}
    for field, (variables, check) in taken.items():
        found = next((variable for variable in variables if os.environ.get(variable)), None)
        if chosen.get(field) is None and found is not None:
            try:
                added[field] = check(os.environ[found])
            except ValueError as error:
                raise InvalidSettings(f"{found}: {error}") from None
    return added


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


def as_field(variable: str) -> str:
    """Return the setting of a variable."""
    return variable[len(PREFIX) :].lower()


def as_variable(name: str) -> str:
    """Return the variable of a setting."""
    return PREFIX + name.upper()
