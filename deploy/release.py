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
    found = sorted(path.name for path in folder.glob("graphweft-*"))
    wheel = f"graphweft-{version}-py3-none-any.whl"
    if found != [wheel, f"graphweft-{version}.tar.gz"]:
        return [f"{folder} has {', '.join(found) or 'no files'}: build at the tag, with `make dist`"]
    with zipfile.ZipFile(folder / wheel) as files:
        text = files.read(f"graphweft-{version}.dist-info/METADATA").decode()
    written = HeaderParser().parsestr(text)["Version"]
    return [] if written == version else [f"{wheel} says that its version is {written}"]


def fallback_problems(project: dict[str, Any], version: str) -> list[str]:
    """Return what is wrong with the version of sources without git: it must not be older than the release."""
    fallback = project["tool"]["hatch"]["version"]["fallback-version"]

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(".")[:3] if number.isdigit()]

    if numbers(fallback) < numbers(re.split(r"a|b|rc", version)[0]):
        return [f"pyproject.toml: fallback-version is {fallback}, older than {version}: set it to {version}.dev0"]
    return []


def main(arguments: list[str]) -> int:
    """Check, and print the notes of the release."""
    if len(arguments) != 2 or not (tag := TAG.fullmatch(arguments[0])):
        print("usage: release.py TAG FOLDER, with a tag like v1.2.3 or v1.2.3rc1", file=sys.stderr)
        return 2
    version, changelog = tag[1], (ROOT / "CHANGELOG.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    problems = [
        *changelog_problems(changelog, version),
        *file_problems(Path(arguments[1]), version),
        *fallback_problems(project, version),
    ]
    for each in problems:
        print(f"error: {each}", file=sys.stderr)
    if problems:
        return 1
    print(sections(changelog)[version][1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
