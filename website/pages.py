"""The pages of the site: those of ``docs/`` and the root with their links turned, and those written from code."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from website import commands, python_api, schemas, settings
from website.markdown import for_site, replace_links, title

ROOT: Final = Path(__file__).parents[1]
CONFIG: Final = ROOT / "website/mkdocs.yml"
OF_ROOT: Final[Mapping[str, str]] = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
"""Pages of the root, and what they are on the site."""
GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "reference/commands.md": commands.commands_page,
    "reference/settings.md": settings.settings_page,
    "reference/files.md": schemas.files_page,
    "reference/events.md": schemas.events_page,
    "reference/messages.md": schemas.messages_page,
    "reference/http.md": schemas.http_page,
    "reference/python.md": python_api.python_page,
}
_FOLDERS: Final[Mapping[str, str]] = {
    "contracts": "reference/events.md",
    "contracts/schemas": "reference/events.md",
    "docs/decisions": "decisions/index.md",
    "README.md": "index.md",
}
"""What a link to something without a page of its own leads to."""
_PICTURES: Final = (".png", ".svg")


class BrokenLink(Exception):
    """A page has a link that leads nowhere."""


def pages() -> dict[str, str]:
    """Return all pages: their place on the site, and their text. Raises ``BrokenLink``."""
    return _turned(set())


def files() -> dict[str, bytes]:
    """Return the other files of the site: pictures, schemas, and files of the project that pages link to."""
    found = _linked_files()
    found |= {
        str(path.relative_to(ROOT / "docs")): path.read_bytes()
        for path in ROOT.glob("docs/**/*")
        if path.suffix in _PICTURES
    }
    return found | {name: text.encode() for name, text in schemas.schema_files()}


def _linked_files() -> dict[str, bytes]:
    """Return the files of the project that pages link to, and those that these link to if they are Markdown."""
    found: dict[str, bytes] = {}
    linked: set[str] = set()
    _turned(linked)
    while linked:
        source = linked.pop()
        place, content = _place(source), (ROOT / source).read_bytes()
        if place in found:
            continue
        found[place] = content
        if source.endswith(".md"):
            found[place] = _with_links(content.decode(), source, linked).encode()
    return found


def configuration(found: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration; a folder in the navigation becomes the pages in it that are not named elsewhere."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text("utf-8"))
    named = set(listed(config["nav"]))
    config["nav"] = _expanded(config["nav"], {place: text for place, text in found.items() if place not in named})
    return config


def listed(entry: Any) -> list[str]:
    """Return the pages of a part of the navigation, in its order."""
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [name for each in inside for name in listed(each)]


def _expanded(entry: Any, free: Mapping[str, str]) -> Any:
    if isinstance(entry, list):
        return [_expanded(each, free) for each in entry]
    if isinstance(entry, dict):
        return {name: _expanded(inside, free) for name, inside in entry.items()}
    if not entry.endswith("/"):
        return entry
    inside = sorted(place for place in free if place.startswith(entry))
    inside.sort(key=lambda place: not place.endswith("/index.md"))
    return [place if place.endswith("/index.md") else {title(free[place]): place} for place in inside]


def _turned(linked: set[str]) -> dict[str, str]:
    sources = {f"docs/{path.relative_to(ROOT / 'docs')}": path for path in ROOT.glob("docs/**/*.md")}
    sources |= {name: ROOT / name for name in OF_ROOT}
    found: dict[str, str] = {}
    for source, path in sorted(sources.items()):
        found[_place(source)] = _with_links(path.read_text("utf-8"), source, linked)
    for place, write in GENERATED.items():
        # They are written as if they stood in docs/.
        found[place] = _with_links(write(), f"docs/{place}", linked)
    return found


def _place(source: str) -> str:
    """Return where something of the project is on the site."""
    if source in OF_ROOT:
        return OF_ROOT[source]
    if source.startswith("docs/"):
        return re.sub(r"(^|/)README\.md$", r"\1index.md", source.removeprefix("docs/"))
    return _FOLDERS.get(source, f"files/{source}")


def _with_links(text: str, source: str, linked: set[str]) -> str:
    here = posixpath.dirname(_place(source))

    def turn(target: str) -> str:
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return target
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if wanted in {f"docs/{place}" for place in GENERATED} | {"docs/openapi.json"}:
            place = wanted.removeprefix("docs/")
        elif not (ROOT / wanted).exists() or wanted.startswith(".."):
            raise BrokenLink(f"{source}: the link {target!r} leads nowhere")
        else:
            place = _FOLDERS.get(wanted) or _place(wanted)
            if wanted not in _FOLDERS and place.startswith("files/"):
                if (ROOT / wanted).is_dir():
                    wanted = f"{wanted}/README.md"
                    if not (ROOT / wanted).exists():
                        raise BrokenLink(f"{source}: the link {target!r} leads to a folder without a README.md")
                    place = _place(wanted)
                linked.add(wanted)
        return posixpath.relpath(place, here or ".") + mark + anchor

    return for_site(replace_links(text, turn))
