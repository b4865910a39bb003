"""A release: the version comes from the tag, and tag, changelog and files agree before anything is published."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy import release
from tests.services.commands import inside
from tests.services.environment import clean_environment

from graphweft_contracts import wire
from graphweft_rules.files import rule_form

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/release.yml"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=git_environment() | environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def git_environment() -> dict[str, str]:
    who = {f"GIT_{role}_{part}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SETUPTOOLS_SCM_"))}
    return kept | who | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def version_of(folder: Path, **environment: str) -> str:
    """Return the version of the distributions in a folder, which is the same."""
    folders = [each for each in (folder, folder / "runtimes") if each.is_dir()]
    [version] = {run(each, sys.executable, "-m", "hatchling", "version", **environment) for each in folders}
    return version


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """What the version and empty wheels need, without git."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("contracts/graphweft_contracts", "rules/graphweft_rules", "client/graphweft"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    (folder / "workers/graphweft_workers").mkdir(parents=True)
    (folder / "workers/graphweft_workers/__init__.py").touch()
    (folder / "runtimes/graphweft_runtimes").mkdir(parents=True)
    (folder / "runtimes/graphweft_runtimes/__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / "runtimes" / name, folder / "runtimes", follow_symlinks=False)
    (folder / "examples/airline").mkdir(parents=True)
    (folder / "examples/airline/README.md").touch()
    return folder


@pytest.fixture
def checkout(sources: Path) -> Path:
    run(sources, "git", "init", "--quiet")
    run(sources, "git", "add", ".")
    run(sources, "git", "commit", "--quiet", "--message", "first")
    return sources


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
class TestVersion:
    def test_a_tag_is_the_version(self, checkout: Path) -> None:
        run(checkout, "git", "tag", "v1.2.3")
        run(checkout, "git", "tag", "nightly-7")
        assert version_of(checkout) == "1.2.3"

    def test_a_release_candidate_is_a_version(self, checkout: Path) -> None:
        run(checkout, "git", "tag", "v1.2.3rc1")
        assert version_of(checkout) == "1.2.3rc1"

    def test_commits_after_a_tag_lead_to_the_next_version(self, checkout: Path) -> None:
        run(checkout, "git", "tag", "v1.2.3")
        run(checkout, "git", "commit", "--quiet", "--allow-empty", "--message", "second")
        assert re.fullmatch(r"1\.2\.4\.dev1\+g[0-9a-f]+", version_of(checkout))

    def test_a_checkout_without_tags_has_a_version(self, checkout: Path, tmp_path: Path) -> None:
        run(checkout, "git", "tag", "demo-2")  # no version
        assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]+", version_of(checkout))
        run(tmp_path, "git", "clone", "--quiet", "--depth", "1", "--no-tags", f"file://{checkout}", "shallow")
        assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]+", version_of(tmp_path / "shallow"))

    def test_sources_without_git_have_a_version_and_the_image_names_one(self, sources: Path) -> None:
        assert version_of(sources) == version_of(sources, SETUPTOOLS_SCM_PRETEND_VERSION="") == "0.1.0.dev0"
        assert version_of(sources, SETUPTOOLS_SCM_PRETEND_VERSION="1.2.3") == "1.2.3"
        assert 'SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION"' in (ROOT / "deploy/Dockerfile").read_text("utf-8")

    def test_an_sdist_keeps_its_version(self, checkout: Path, tmp_path: Path) -> None:
        run(checkout, "git", "tag", "v1.2.3")
        build = "import sys; from hatchling import build; getattr(build, sys.argv[1])(sys.argv[2])"
        for name, folder in (("graphweft", checkout), ("graphweft_runtimes", checkout / "runtimes")):
            [problem] = release.file_problems(tmp_path, "1.2.3")
            assert problem.startswith(f"{tmp_path} has ")
            assert problem.endswith(": build at the tag, with `make dist`")
            run(folder, sys.executable, "-c", build, "build_sdist", str(tmp_path))
            with tarfile.open(tmp_path / f"{name}-1.2.3.tar.gz") as archive:
                archive.extractall(tmp_path, filter="data")
            assert (tmp_path / f"{name}-1.2.3/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
            run(tmp_path / f"{name}-1.2.3", sys.executable, "-c", build, "build_wheel", str(tmp_path))
            shutil.rmtree(tmp_path / f"{name}-1.2.3")
        assert release.file_problems(tmp_path, "1.2.3") == []
        [problem] = release.file_problems(tmp_path, "1.2.4")
        assert "build at the tag" in problem


def test_every_place_has_the_version_of_the_metadata() -> None:
    from importlib.metadata import version

    assert inside(["--version"], clean_environment()).out == f"graphweft {version('graphweft')}\n"
    sources = [
        path
        for folder in ("client", "contracts", "rules", "runtimes", "workers")
        for path in (ROOT / folder).rglob("*.py")
    ]
    written = {
        path for path in sources if re.search(r'(?m)^_*VERSION_*\b.*"\d', path.read_text("utf-8"), re.IGNORECASE)
    }
    assert written == {Path(wire.__file__), Path(rule_form.__file__)}, "the wire contract and rule files have their own"


def test_a_wheel_that_names_another_version_is_found(tmp_path: Path) -> None:
    for name, version in (("graphweft", "1.2.3"), ("graphweft_runtimes", "1.2.2")):
        with zipfile.ZipFile(tmp_path / f"{name}-1.2.3-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}-1.2.3.dist-info/METADATA", f"Metadata-Version: 2.4\nVersion: {version}\n")
        (tmp_path / f"{name}-1.2.3.tar.gz").touch()
    assert release.file_problems(tmp_path, "1.2.3") == [
        "graphweft_runtimes-1.2.3-py3-none-any.whl says that its version is 1.2.2"
    ]


NOTES = "### Added\n\n- It."
GOOD = f"# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n{NOTES}\n\n## [1.2.2] - 2026-01-01\n\n- A.\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release.changelog_problems(GOOD, "1.2.3") == []
    assert release.sections(GOOD)["1.2.3"] == ("2026-01-31", NOTES)


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        ("# Changelog\n", "no section '## [1.2.3] - YYYY-MM-DD'; it has none"),
        (GOOD.replace("[1.2.3]", "[1.2.4]"), "it has Unreleased, 1.2.4, 1.2.2"),
        (GOOD.replace(" - 2026-01-31", ""), "has the date '', not one like 2026-01-31"),
        (GOOD.replace("2026-01-31", "2026-31-01"), "has the date '2026-31-01'"),
        (GOOD.replace(NOTES, ""), "the section of 1.2.3 is empty"),
        (GOOD.replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"), "move what is under Unreleased to 1.2.3"),
    ],
)
def test_a_changelog_that_is_not_ready_is_found(changelog: str, said: str) -> None:
    [problem] = release.changelog_problems(changelog, "1.2.3")
    assert said in problem


@pytest.mark.parametrize(
    ("fallback", "version", "fits"),
    [
        ("0.1.0.dev0", "0.1.0", True),
        ("0.2.0.dev0", "0.1.9", True),
        ("0.1.0.dev0", "0.1.0rc1", True),
        ("0.1.0.dev0", "0.1.1", False),
        ("0.9.0.dev0", "0.10.0", False),
    ],
)
def test_sources_without_git_are_not_older_than_the_release(fallback: str, version: str, fits: bool) -> None:
    project = {"tool": {"hatch": {"version": {"fallback-version": fallback}}}}
    assert (release.fallback_problems(project, version) == []) is fits


@pytest.mark.parametrize(
    ("asked", "version", "fits"),
    [
        ("graphweft>=0.1.0.dev0,<0.2", "0.1.0", True),
        ("graphweft>=0.1.0.dev0,<0.2", "0.1.7rc1", True),
        ("graphweft>=0.1.0.dev0,<0.2", "0.2.0", False),
        ("graphweft>=1.9.0.dev0,<1.10", "1.9.3", True),
        ("graphweft", "0.1.0", False),
    ],
)
def test_the_adapters_ask_for_the_minor_version_of_the_release(asked: str, version: str, fits: bool) -> None:
    runtimes = {"project": {"dependencies": ["graphweft-more", asked]}}
    assert (release.range_problems(runtimes, version) == []) is fits


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-rc1", "v1.2.3.4", "main", ""])
def test_a_tag_that_is_no_version_is_refused(tag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main([tag, "dist"]) == 2
    assert "a tag like v1.2.3" in capsys.readouterr().err


def test_everything_that_does_not_agree_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["v999.0.0", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    for part in (
        "no section '## [999.0.0]", "has no files", "pyproject.toml: fallback-version is",
        "runtimes/pyproject.toml: fallback-version is", "set it to graphweft>=999.0.0.dev0,<999.1",
    ):  # fmt: skip
        assert part in said.err


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    assert CHANGELOG.startswith("# Changelog\n")
    versions = [*release.sections(CHANGELOG)]
    assert versions[0] == "Unreleased"
    assert len(release.HEADING.findall(CHANGELOG)) == len(re.findall(r"(?m)^## ", CHANGELOG)) == len(versions)
    for text in (text for _, text in release.sections(CHANGELOG).values()):
        kinds = re.findall(r"(?m)^### (.*)$", text)
        assert set(kinds) <= set(KINDS)
        assert len(set(kinds)) == len(kinds), "one section of a kind"


def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    return found


def test_actions_are_pinned_by_hash() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW.read_text("utf-8"))
    assert len(used) > 5
    for each in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each
    names = {each.partition(" # ")[0] for each in used}
    assert len({each.partition("@")[0] for each in names}) == len(names), "one version of an action"


def test_a_job_has_only_the_rights_that_it_needs() -> None:
    found = workflow()
    assert found["permissions"] == {}
    rights = {name: job["permissions"] for name, job in found["jobs"].items()}
    assert rights["build"] == {"contents": "read"}
    assert rights["pypi"] == {"id-token": "write"}
    assert "secrets." not in WORKFLOW.read_text("utf-8"), "an identity in place of a password"
    for job in found["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), "a value in a script is a variable"


def test_a_tag_starts_the_workflow_and_what_it_runs_exists() -> None:
    text = WORKFLOW.read_text("utf-8")
    assert workflow()[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}  # YAML reads `on` as true
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for targets in re.findall(r"run: make (.*)", text):
        assert all(re.search(rf"(?m)^{target}:", makefile) for target in targets.split())
    for path in re.findall(r"(?:deploy|\.ci)/\w+(?:\.py)?", text):
        assert (ROOT / path).exists(), path
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dynamic"] == ["version"]
