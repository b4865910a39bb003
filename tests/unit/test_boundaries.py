"""What import-linter has no contract for: no import cycle, and no product's name outside of its driver."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("graphweft_contracts", "graphweft_rules", "graphweft", "graphweft_runtimes", "graphweft_workers")
FOLDERS = (
    *("contracts/graphweft_contracts", "rules/graphweft_rules", "client/graphweft"),
    *("runtimes/graphweft_runtimes", "workers/graphweft_workers"),
)
DRIVERS = ("workers/graphweft_workers/drivers/", "client/graphweft/transports/")
PRODUCT = re.compile("kafka|redis|neo4j|falkordb", re.IGNORECASE)
LOG_NAME = "GRAPHRAG_NOOP_NEO4J_DOWN"
"""The name of a log entry that runtimes look for."""


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.py")


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False)
    imports = {
        module: {
            imported
            for imported in graph.find_modules_directly_imported_by(module)
            # A package is imported before its modules, whoever asks for them.
            if not module.startswith(f"{imported}.") and not imported.startswith(f"{module}.")
        }
        for module in graph.modules
    }
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"an import cycle: {' -> '.join(error.args[1])}")


def test_products_are_named_in_their_drivers_only() -> None:
    named = [
        f"{name}:{number}: {line.strip()}"
        for path in modules()
        if not (name := str(path.relative_to(ROOT))).startswith(DRIVERS)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if PRODUCT.search(line.replace(LOG_NAME, ""))
    ]
    assert named == []
