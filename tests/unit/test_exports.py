"""``__all__`` of a package, and of each documented module of the client, lists all of its public names, sorted."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("graphweft_contracts", "graphweft_rules", "graphweft", "graphweft_runtimes", "graphweft_workers")
DOCUMENTED = {
    "graphweft.memory",
    "graphweft.hooks",
    "graphweft.testing",
    "graphweft.adapters.core",
    "graphweft_runtimes.agent_framework.memory",
}
"""Modules of the client that users import from."""


def modules() -> Iterator[str]:
    """Yield the names of all modules from their files, so that a module which cannot be imported is a failed test."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root.parent).with_suffix("").parts
            if parts[-1] != "__main__":  # importing one runs it
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def defined(module: str) -> set[str]:
    """Return the public names that the source of a module defines at its top level; imports do not count."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.TypeAlias(name=ast.Name(id=name)) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case _:
                pass
    # A logger is named as everybody names it, and is nothing to import.
    return {name for name in found if not name.startswith("_")} - {"logger"}


def order(name: str) -> tuple[int, list[str | int]]:
    """Sort as ruff's RUF022 does: constants, classes, the rest; numbers inside names by their value."""
    group = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def is_there(*names: str) -> bool:
    """Tell whether a package and what is in it can be imported, each after the one that holds it."""
    return all(importlib.util.find_spec(name) is not None for name in names)


def fault_of(name: str) -> str:
    """Return what is wrong with ``__all__`` of a module, or an empty text."""
    if name == "graphweft_runtimes.otel.exporter" and not is_there("opentelemetry", "opentelemetry.sdk"):
        return ""  # it is imported by OpenTelemetry's SDK alone
    module = importlib.import_module(name)
    if name.startswith("graphweft.transports."):  # drivers may list their names
        return ""
    if not hasattr(module, "__path__") and name not in DOCUMENTED:
        return "only packages and documented modules have an __all__" if hasattr(module, "__all__") else ""
    if not hasattr(module, "__all__"):
        public = defined(name)
        return f"it defines {public}: say in __all__ which of them are promised" if public else ""
    exported = module.__all__
    if not isinstance(exported, tuple):
        return "__all__ is no tuple"
    if list(exported) != sorted(set(exported), key=order):
        return "__all__ is not sorted, or names something twice"
    if missing := [export for export in exported if not hasattr(module, export)]:
        return f"it lacks {missing}"
    left_out = defined(name) - set(exported)
    return f"__all__ lacks {left_out}" if left_out else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_all_says_what_each_module_promises(package: str) -> None:
    of_package = [name for name in modules() if name.partition(".")[0] == package]
    assert {name: fault for name in of_package if (fault := fault_of(name))} == {}


def test_the_modules_are_found() -> None:
    assert {"graphweft_contracts", "graphweft_contracts.events", "graphweft_rules.files.model"} <= set(modules())
