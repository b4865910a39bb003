"""Says whether a tag may be released, and prints its notes: `python deploy/release.py v1.2.3 dist > notes.md`.

The tag, the changelog, the built files and the version for sources without git must agree. Everything that does not is
printed, and the exit code is 1.
"""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from datetime import date
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TAG = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
DISTRIBUTIONS = ("graphweft", "graphweft_runtimes")
HEADING = re.compile(r"(?m)^## \[([^]]+)\](?: - (\S+))?$")


def sections(changelog: str) -> dict[str, tuple[str, str]]:
    """Return the date and the text of each version of a changelog; ``Unreleased`` has no date."""
    found = [*HEADING.finditer(changelog)]
    ends = [*(each.start() for each in found[1:]), len(changelog)]
    return {
        each[1]: (each[2] or "", changelog[each.end() : end].strip()) for each, end in zip(found, ends, strict=False)
    }


def changelog_problems(changelog: str, version: str) -> list[str]:
    """Return what is wrong with the section of a version."""
    known = sections(changelog)
    if version not in known:
        return [f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'; it has {', '.join(known) or 'none'}"]
    day, text = known[version]
    problems: list[str] = []
    try:
        date.fromisoformat(day)
    except ValueError:
        problems.append(f"CHANGELOG.md: the section of {version} has the date {day!r}, not one like 2026-01-31")
    if not text:
        problems.append(f"CHANGELOG.md: the section of {version} is empty")
    if known.get("Unreleased", ("", ""))[1]:
        problems.append(f"CHANGELOG.md: move what is under Unreleased to {version}")
    return problems


def file_problems(folder: Path, version: str) -> list[str]:
    """Return what is wrong with the built files."""
    found = sorted(path.name for path in folder.glob("graphweft*"))
    wheels = {name: f"{name}-{version}-py3-none-any.whl" for name in DISTRIBUTIONS}
    if found != sorted([*wheels.values(), *(f"{name}-{version}.tar.gz" for name in DISTRIBUTIONS)]):
        return [f"{folder} has {', '.join(found) or 'no files'}: build at the tag, with `make dist`"]
    problems: list[str] = []
    for name, wheel in wheels.items():
        with zipfile.ZipFile(folder / wheel) as files:
            text = files.read(f"{name}-{version}.dist-info/METADATA").decode()
        if (written := HeaderParser().parsestr(text)["Version"]) != version:
            problems.append(f"{wheel} says that its version is {written}")
    return problems


def fallback_problems(project: dict[str, Any], version: str, file: str = "pyproject.toml") -> list[str]:
    """Return what is wrong with the version of sources without git: it must not be older than the release."""
    fallback = project["tool"]["hatch"]["version"]["fallback-version"]
    if numbers(fallback) < numbers(version):
        return [f"{file}: fallback-version is {fallback}, older than {version}: set it to {version}.dev0"]
    return []


def range_problems(runtimes: dict[str, Any], version: str) -> list[str]:
    """Return what is wrong with the versions of graphweft that its adapters ask for: those of the minor version."""
    major, minor, *_ = numbers(version)
    [asked] = [each for each in runtimes["project"]["dependencies"] if re.match(r"graphweft\b(?!-)", each)]
    wanted = f"graphweft>={major}.{minor}.0.dev0,<{major}.{minor + 1}"
    return [] if asked == wanted else [f"runtimes/pyproject.toml: it asks for {asked}: set it to {wanted}"]


def numbers(version: str) -> list[int]:
    """Return the three numbers of a version."""
    return [int(number) for number in re.split(r"a|b|rc", version)[0].split(".")[:3] if number.isdigit()]


def main(arguments: list[str]) -> int:
    """Check, and print the notes of the release."""
    if len(arguments) != 2 or not (tag := TAG.fullmatch(arguments[0])):
        print("usage: release.py TAG FOLDER, with a tag like v1.2.3 or v1.2.3rc1", file=sys.stderr)
        return 2
    version, changelog = tag[1], (ROOT / "CHANGELOG.md").read_text("utf-8")
    project, runtimes = (
        tomllib.loads((ROOT / file).read_text("utf-8")) for file in ("pyproject.toml", "runtimes/pyproject.toml")
    )
    problems = [
        *changelog_problems(changelog, version),
        *file_problems(Path(arguments[1]), version),
        *fallback_problems(project, version),
        *fallback_problems(runtimes, version, "runtimes/pyproject.toml"),
        *range_problems(runtimes, version),
    ]
    for each in problems:
        print(f"error: {each}", file=sys.stderr)
    if problems:
        return 1
    print(sections(changelog)[version][1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
