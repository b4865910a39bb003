"""App policies: the file, its faults, and its reload."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.services.fixtures import Logs

from graphweft_contracts import InvalidSettings
from graphweft_workers.apps import AppPolicies, Quotas, read_policies
from graphweft_workers.support.watched_file import WatchedFile


def written(folder: Path, text: str) -> Path:
    file = folder / "apps.yaml"
    file.write_text(text)
    return file


def test_an_app_uses_its_workflows_and_others_the_default(tmp_path: Path) -> None:
    found = read_policies(
        written(tmp_path, "default: {workflows: [Shared]}\napps: {acme: {workflows: [Support]}, x: {}}")
    )
    assert found.allows_workflow("acme", "Support")
    assert not found.allows_workflow("acme", "Shared")
    assert not found.allows_workflow("acme", "support"), "names are exact"
    assert found.allows_workflow("x", "Shared"), "a field that is not set is that of default"
    assert found.allows_workflow("other", "Shared")
    assert not found.allows_workflow("other", "Support")


def test_without_a_file_every_workflow_is_allowed() -> None:
    assert AppPolicies().allows_workflow("acme", "Support")


def test_a_star_allows_every_workflow_and_an_empty_list_none(tmp_path: Path) -> None:
    found = read_policies(written(tmp_path, 'default: {workflows: []}\napps: {acme: {workflows: ["*"]}}'))
    assert found.allows_workflow("acme", "Support")
    assert not found.allows_workflow("other", "Support")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "apps.yaml:1:1: the file: it is empty"),
        ("- x", "apps.yaml:1:1: the file:"),
        ("apps:\n  acme:\n    workflow: [x]\n", "apps.yaml:3:5: apps.acme.workflow: Extra inputs"),
        ("apps:\n  acme: {workflows: support}\n", "apps.yaml:2:10: apps.acme.workflows:"),
        ("apps:\n  acme:\n    workflows:\n      - ok\n      - 1\n", "apps.yaml:5:9: apps.acme.workflows.1:"),
        ("apps:\n  acme: {}\n  acme: {}\n", "apps.yaml:3:3: invalid YAML: the key 'acme' is used"),
        ("apps:\n  a b: {}\n", "apps.yaml:2:3: apps.a b."),
        ("apps: [\n", "invalid YAML"),
        ("apps:\n  acme: {quotas: {events: 1}}\n", "apps.yaml:2:19: apps.acme.quotas.events: Extra inputs"),
        ("apps:\n  acme: {quotas: {events_per_s: 0}}\n", "apps.yaml:2:19: apps.acme.quotas.events_per_s:"),
        ("default: {quotas: {stored_bytes: 1.5}}\n", "apps.yaml:1:20: default.quotas.stored_bytes:"),
        ("default: {quotas: {dead_letters: '5'}}\n", "apps.yaml:1:20: default.quotas.dead_letters:"),
    ],
)
def test_a_fault_has_file_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        read_policies(written(tmp_path, text))
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"apps: {tmp_path}")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_policies(tmp_path / "none.yaml")


def test_a_changed_file_is_in_use_and_a_faulty_one_is_not(tmp_path: Path, logs: Logs) -> None:
    file = written(tmp_path, "apps: {acme: {workflows: [A]}}")
    watched = WatchedFile(file, read_policies)
    assert not watched.refresh()

    def change(text: str | None) -> None:
        if text is None:
            file.unlink()
        else:
            new = file.with_suffix(".new")
            new.write_text(text)
            os.replace(new, file)
        logs.clear()
        assert not watched.refresh(), "it may be half written"
        assert watched.refresh()
        assert not watched.refresh(), "each change is read once"

    change("apps: {acme: {workflows: [B]}}")
    assert (watched.current.allows_workflow("acme", "B"), watched.problem) == (True, None)
    for broken in ("apps: {acme: {workflow: [C]}}", None, ""):
        change(broken)
        assert watched.current.allows_workflow("acme", "B"), "the earlier content stays in use"
        assert watched.problem
        assert watched.problem in [entry.get("error") for entry in logs]
    change("apps: {acme: {workflows: [D]}}")
    assert (watched.current.allows_workflow("acme", "D"), watched.problem) == (True, None)


def test_a_file_counts_when_it_is_whole(tmp_path: Path) -> None:
    """It is written in pieces, each of which is a valid file, and read in between; and it changes while it is read."""
    whole = "apps:\n  acme: {workflows: [A]}\n  other: {workflows: [B]}\n"
    file = written(tmp_path, whole)
    watched = WatchedFile(file, read_policies, gone=AppPolicies())

    def allowed() -> bool:
        return watched.current.allows_workflow("other", "B") and not watched.current.allows_workflow("other", "C")

    for piece in ("", *(whole[:cut] for cut in range(0, len(whole), 7)), whole + "# the end\n"):
        file.write_text(piece)
        assert not watched.refresh()
        assert allowed()
    assert watched.refresh()
    assert allowed()

    def read(path: Path) -> AppPolicies:
        found = read_policies(path)
        file.write_text(whole.replace("[B]", "[B, D]"))
        return found

    file.write_text("apps: {}")
    watched._read = read  # pyright: ignore[reportPrivateUsage]
    assert [watched.refresh() for _ in range(2)] == [False, False]
    watched._read = read_policies  # pyright: ignore[reportPrivateUsage]
    assert [watched.refresh() for _ in range(3)] == [False, True, False]
    assert watched.current.allows_workflow("other", "D")


def test_a_quota_that_an_app_does_not_set_is_that_of_default(tmp_path: Path) -> None:
    text = """
default: {quotas: {events_per_s: 10, dead_letters: 5}}
apps:
  acme: {quotas: {events_per_s: 0.5, stored_bytes: 9}}
  free: {quotas: {events_per_s: null, property_names: null}}
  plain: {workflows: [Support]}
"""
    found = read_policies(written(tmp_path, text))
    assert found.of("acme").quotas == Quotas(events_per_s=0.5, dead_letters=5, stored_bytes=9)
    assert found.of("free").quotas == Quotas(dead_letters=5, property_names=None)
    assert found.of("plain").quotas == found.of("other").quotas == Quotas(events_per_s=10, dead_letters=5)
    assert found.of("acme").allows_workflow("Support")


def test_without_a_file_only_names_of_properties_have_a_quota() -> None:
    assert AppPolicies().of("acme").quotas.model_dump() == {
        "events_per_s": None, "bytes_per_s": None, "stored_bytes": None, "dead_letters": None, "graph_bytes": None,
        "property_names": 10_000,
    }  # fmt: skip
