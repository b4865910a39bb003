"""The page of all settings, from the settings themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from graphweft_workers.settings.settings import Settings
from website.markdown import code, table

_NAMES = {int: "integer", float: "number", bool: "boolean", str: "text", Path: "path", SecretStr: "secret"}


def settings_page() -> str:
    """Return the page."""
    rows = [
        (code(f"GRAPHWEFT_{name.upper()}"), code(name), _type(field), _default(field), field.description or "")
        for name, field in Settings.model_fields.items()
    ]
    return (
        "# Settings\n\n"
        "Written from the settings themselves. Options override variables of the environment, and these override "
        "`graphweft.yaml`. A secret may be in a file: `GRAPHWEFT_BUS_PASSWORD_FILE`. See "
        "[settings](../commands.md#settings) for the rules, and for the variables of other tools.\n\n"
        + table(("variable", "in graphweft.yaml", "value", "default", "meaning"), rows)
    )


def _type(field: FieldInfo) -> str:
    types = [each for each in (get_args(field.annotation) or (field.annotation,)) if each is not type(None)]
    if get_origin(field.annotation) is Literal:
        return " or ".join(code(each) for each in types)
    return " or ".join(_name(each) for each in types) + _bounds(field)


def _name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(code(each) for each in get_args(annotation))
    return _NAMES.get(annotation, "text")


def _bounds(field: FieldInfo) -> str:
    low = next((each.ge for each in field.metadata if hasattr(each, "ge")), None)
    high = next((each.le for each in field.metadata if hasattr(each, "le")), None)
    if low is None:
        return ""
    return f", {low:,} or more" if high is None else f", {low:,} to {high:,}"


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if value is None:
        return "none"
    return code(str(value).lower() if isinstance(value, bool) else value)
