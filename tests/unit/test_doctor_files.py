"""What `doctor` says of the files of tokens and policies, and of an archive that no setting asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphweft_workers.doctor import (
    _archive_advice,  # pyright: ignore[reportPrivateUsage]
    _files,  # pyright: ignore[reportPrivateUsage]
)
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.archive_state import ArchiveState
from graphweft_workers.wiring.policies import file_faults


@pytest.mark.parametrize("setting", ["gateway_tokens", "console_tokens"])
def test_a_fault_of_a_file_names_its_setting_once(setting: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("tokens:\n  - {app: x, sha256: y}\n")
    settings = Settings.load(**{setting: file})
    [check] = [check for check in _files(settings) if check.state == "fail"]
    assert check.name == setting
    assert all(line.startswith(str(file)) for line in check.found.splitlines()[:-1]), check.found
    told = file_faults(settings)[setting].splitlines()[:-1]
    assert all(line.startswith(f"{setting}: {file}") for line in told), "who shows faults without their settings"


def test_doctor_says_which_files_it_looks_at(tmp_path: Path) -> None:
    file = tmp_path / "apps.yaml"
    file.write_text("default: {workflows: [Support]}\n")
    [check] = _files(Settings.load(apps=file))
    assert (check.name, check.state) == ("files", "ok")
    assert check.found == (
        f"apps is {file}; not set here, so not looked at: GRAPHWEFT_GATEWAY_TOKENS, GRAPHWEFT_CONSOLE_TOKENS"
    )


@pytest.mark.parametrize(
    ("given", "warned"), [({}, False), ({"archive_url": "/a"}, True), ({"archive_trim": True}, True)]
)
def test_only_an_archive_that_is_asked_for_needs_a_role(given: dict[str, object], warned: bool) -> None:
    partition = PartitionStatus(id=0, position="1-0", end="2-0", lag=0, owner=None, written=9, trimmed=0)
    advice = _archive_advice(Settings.load(**given), ArchiveState(enabled=True, behind=3), [partition])
    assert ("nobody archives" in advice) == warned
