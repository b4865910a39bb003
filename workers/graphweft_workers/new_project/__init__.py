"""A small project that runs: rules of two workflows, their tests, the JSON Schemas of both, and a script.

The files are in ``template``, as a user gets them. Only the name of the workflow is replaced. The other workflow,
``default``, has the default rules, which ``graphweft up`` uses while there is no folder of this name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.rules_log import digest_of

__all__ = (
    "AGENT_ZERO", "WORKFLOW", "agent_zero_files", "default_rule_files", "is_default", "project_files", "write_project",
)  # fmt: skip

WORKFLOW: Final = "support"
"""The workflow of the template."""
AGENT_ZERO: Final = "AgentZero"
"""The workflow of the plugin for Agent Zero, unless its settings name another one."""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_DEFAULTS: Final = f"{DEFAULT_WORKFLOW}/graph_injection.yaml"
_TEMPLATE: Final = (
    f"workflows/{WORKFLOW}/graph_injection.yaml",
    f"workflows/{WORKFLOW}/orders_test.yaml",
    "agent.py",
)
_DEFAULT_TEMPLATE: Final = (f"workflows/{_DEFAULTS}", f"workflows/{DEFAULT_WORKFLOW}/defaults_test.yaml")


def default_rule_files() -> dict[str, bytes]:
    """Return the files of the default rules, by their paths from the folder of workflows."""
    return {_DEFAULTS: resources.files(__name__).joinpath("template", "workflows", _DEFAULTS).read_bytes()}


def agent_zero_files() -> dict[str, str]:
    """Return the rules of Agent Zero's plugin and their tests, by their paths from the folder of workflows."""
    template = resources.files(__name__).joinpath("template", "workflows")
    names = (f"{AGENT_ZERO}/graph_injection.yaml", f"{AGENT_ZERO}/agent_zero_test.yaml")
    return {name: template.joinpath(name).read_text("utf-8") for name in names}


def is_default(digest: str) -> bool:
    """Tell whether a rule set has exactly the default rules of this version."""
    return digest == digest_of(default_rule_files())


def project_files(workflow: str = WORKFLOW, *, defaults: bool = True) -> dict[str, str]:
    """Return the text of each file by its path in the project; without ``defaults``, without the default rules.

    Raises ``InvalidSettings`` for an invalid name."""
    from graphweft_rules.json_schemas import schema_text

    if not _NAME.fullmatch(workflow):
        raise InvalidSettings(
            f"invalid --workflow {workflow!r}: expected a letter, then letters, digits, '_' and '-', 64 at most. "
            "For another name, rename the folder in `workflows` afterwards, and the workflow in agent.py"
        )
    template = resources.files(__name__).joinpath("template")
    files = {
        name.replace(WORKFLOW, workflow): template.joinpath(name).read_text("utf-8").replace(WORKFLOW, workflow)
        for name in _TEMPLATE
    }
    if defaults and workflow != DEFAULT_WORKFLOW:
        files |= {name: template.joinpath(name).read_text("utf-8") for name in _DEFAULT_TEMPLATE}
    return {**files, "schemas/rules.json": schema_text("rules"), "schemas/test.json": schema_text("test")}


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files into a folder, which may be new. Overwrites nothing.

    Raises ``InvalidSettings``, with no file written, if a file exists already or cannot be written.
    """
    if not str(folder).isprintable():
        raise InvalidSettings(f"invalid folder {str(folder)!r}: its name has characters that cannot be printed")
    taken = _taken(folder, files)
    if taken:
        raise InvalidSettings(
            f"{', '.join(map(str, taken))} exist already, and nothing is overwritten: choose another folder, or move "
            "them away"
        )
    written: list[Path] = []
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise InvalidSettings(f"cannot write {error.filename or folder}: {error.strerror}") from error


def _taken(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Return the paths that exist where files would be written, and files that are where a folder must be."""
    found: dict[Path, None] = {}
    for name in files:
        path = folder / name
        if os.path.lexists(path):
            found[path] = None
        for parent in path.parents:
            if os.path.lexists(parent) and not parent.is_dir():
                found[parent] = None
    return list(found)
