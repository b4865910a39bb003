"""Checks of the built site: it loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_LOADS: Final = (
    re.compile(r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""),
    re.compile(
        r"""<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|icon|modulepreload|preconnect|dns-prefetch))"""
        r"""[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    ),
    re.compile(r"""url\(["']?((?:https?:)?//[^"')]+)"""),
    re.compile(r"""@import\s+["']((?:https?:)?//[^"']+)"""),
)
_DIAGRAM: Final = re.compile(r"""class=["']?mermaid\b""")


def remote_assets(site: Path) -> list[str]:
    """Return a line for each thing that a page or a style sheet of the folder would load from another host.

    A Mermaid diagram counts, because the theme loads the library for it from another host.
    """
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css", ".svg"):
            continue
        text = path.read_text("utf-8")
        found += [f"{path.relative_to(site)}: {match[1]}" for each in _LOADS for match in each.finditer(text)]
        if path.suffix == ".html" and _DIAGRAM.search(text):
            found.append(f"{path.relative_to(site)}: a Mermaid diagram; make it an SVG")
    return found
