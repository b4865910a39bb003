"""Folders of workflows may be links, such as those of a mounted ConfigMap: all readers look into them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from graphweft_rules.files.lint import lint
from graphweft_rules.files.loader import discover, unread_files
from graphweft_rules.rule_tests.folder import load_tests

EXAMPLE = Path(__file__).parents[3] / "examples/airline/workflows"


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """The example as the kubelet mounts a ConfigMap with folders."""
    root = tmp_path / "rules"
    shutil.copytree(EXAMPLE, root / "..2026_01_01")
    (root / "..data").symlink_to("..2026_01_01")
    for folder in EXAMPLE.iterdir():
        (root / folder.name).symlink_to(f"..data/{folder.name}")
    return root


def test_lint_looks_into_the_folders_that_are_used(mounted: Path) -> None:
    assert [*discover(mounted)] == ["AirlineSupport"]
    assert lint([mounted]) == lint([EXAMPLE]) == []
    (mounted / "..data/AirlineSupport/graph_injection.yaml").write_text(
        "schema_version: 1\nmutation_rulez: []\n", "utf-8"
    )
    assert {finding.level for finding in lint([mounted])} == {"error"}


def test_tests_of_rules_are_found(mounted: Path) -> None:
    assert len(load_tests(mounted).cases) == len(load_tests(EXAMPLE).cases) > 0


def test_a_file_that_nobody_reads_is_named_once(mounted: Path) -> None:
    (mounted / "..data/AirlineSupport/graph_injections.yaml").write_text("", "utf-8")
    assert [Path(each.place.file).name for each in unread_files(mounted)] == ["graph_injections.yaml"]


def test_a_link_to_a_folder_above_is_not_followed(mounted: Path) -> None:
    (mounted / "..data/AirlineSupport/again").symlink_to(mounted)
    assert lint([mounted]) == []
