"""``python -m website``: write the sources of the site, build it, and check that it loads nothing from elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from website import llms
from website.built import remote_assets
from website.pages import ROOT, configuration, files, listed, pages

BUILD = ROOT / "build"
_UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
"""Before pages about the past, which would stand before those for users in the results of a search."""


def write_sources(folder: Path, found: Mapping[str, str]) -> None:
    """Write the configuration, and all pages and files in ``docs``."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = folder / "docs"
    config = configuration(found)
    order = listed(config["nav"])
    marks = {place: _UNSEARCHED if llms.is_past(place) else "" for place in found}
    content = {place: (marks[place] + text).encode() for place, text in found.items()} | files()
    content["llms.txt"] = llms.index(found, order).encode()
    content["llms-full.txt"] = llms.full(found, order).encode()
    for place, data in content.items():
        path = docs / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "utf-8")


def main() -> int:
    """Build the site in ``build/site``; return 1 if anything is wrong with it."""
    folder, site = BUILD / "site-source", BUILD / "site"
    found = pages()
    write_sources(folder, found)
    shutil.rmtree(site, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "mkdocs.yml"],
        cwd=folder, check=False,
    )  # fmt: skip
    if done.returncode:
        return 1
    (folder / "site").rename(site)
    for place, text in found.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(text, "utf-8")
    if faults := remote_assets(site):
        sys.stderr.write("the site would load from other hosts:\n" + "".join(f"  {each}\n" for each in faults))
        return 1
    sys.stdout.write(f"the site is in {site}; to look at it: {sys.executable} -m http.server -d {site} -b 127.0.0.1\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
