"""What a user types to run a command again, as ``init`` and ``demo`` print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphweft_workers.cli.invocation import Invocation, invocation


def program(folder: Path) -> Path:
    """Make a program as installers do, with its Python beside it."""
    folder.mkdir(parents=True)
    for name in ("graphweft", "python"):
        (folder / name).touch(mode=0o700)
    return folder / "graphweft"


def typed(path: Path | str, tmp_path: Path, folder: str = "") -> Invocation:
    here = tmp_path / "here"
    here.mkdir(exist_ok=True)
    return invocation(str(path), str(Path(path).parent / "python"), here=here, folder=here / folder)


def test_a_program_on_the_path_is_typed_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "venv/bin")
    monkeypatch.setenv("PATH", str(path.parent))
    assert typed(path, tmp_path) == Invocation(graphweft="graphweft", python="python")


def test_another_program_on_the_path_is_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "my venv/bin")
    monkeypatch.setenv("PATH", str(program(tmp_path / "other/bin").parent))
    found = typed(path, tmp_path)
    assert found == Invocation(graphweft=f"'{path}'", python=f"'{path.parent}/python'")
    assert found.is_long


def test_a_program_beside_which_there_is_no_python_names_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pipx and uv install it: the command is on the PATH, and its Python is not."""
    path = program(tmp_path / "bin")
    (path.parent / "python").unlink()
    monkeypatch.setenv("PATH", str(path.parent))
    found = invocation(str(path), "/apart/bin/python", here=tmp_path / "here", folder=tmp_path / "here")
    assert found == Invocation(graphweft="graphweft", python="/apart/bin/python")


@pytest.mark.parametrize("cache", ["uv/archive-v0/x1/bin", ".cache/pipx/x1/bin"])
def test_a_program_of_one_run_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """``uvx`` puts it on the PATH of this process, but not on that of the user."""
    path = program(tmp_path / cache)
    monkeypatch.setenv("PATH", str(path.parent))
    assert typed(path, tmp_path) == Invocation(graphweft=str(path), python=str(path.parent / "python"))


@pytest.mark.parametrize(("folder", "expected"), [("", ".venv/bin"), ("new", "../.venv/bin")])
def test_a_program_in_the_working_folder_is_near(tmp_path: Path, folder: str, expected: str) -> None:
    path = program(tmp_path / "here/.venv/bin")
    for given in (path, ".venv/bin/graphweft"):
        found = typed(given, tmp_path, folder)
        assert found == Invocation(graphweft=f"{expected}/graphweft", python=f"{expected}/python")
        assert not found.is_long


def test_a_module_that_is_run_has_no_name_of_its_own(tmp_path: Path) -> None:
    assert typed("/x/graphweft_workers/cli/__main__.py", tmp_path) == Invocation(graphweft="graphweft", python="python")
