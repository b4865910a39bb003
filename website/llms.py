"""``llms.txt`` and ``llms-full.txt``: the site for programs that read text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from website.markdown import first_paragraph, title


def index(pages: Mapping[str, str], order: Sequence[str]) -> str:
    """Return ``llms.txt``: a line for each page, in the order of the navigation."""
    lines = [
        "# graphweft",
        "",
        "> Event-driven graph memory for agents: lifecycle events become a graph by declarative rules, and the graph "
        "comes back as context before each turn.",
        "",
        "Each page is also there as Markdown, at the address below. All pages in one file: llms-full.txt",
        "",
        "## Pages",
        "",
    ]
    for place in order:
        text = first_paragraph(pages[place])
        lines.append(f"- [{_plain(title(pages[place]))}]({place})" + (f": {text}" if text else ""))
    return "\n".join(lines) + "\n"


def full(pages: Mapping[str, str], order: Sequence[str]) -> str:
    """Return ``llms-full.txt``: all pages in the order of the navigation, decisions and changes left out."""
    return "\n".join(f"<!-- {place} -->\n\n{pages[place].rstrip()}\n" for place in order if not is_past(place))


def is_past(place: str) -> bool:
    """Tell whether a page is about the past: a decision, or the changes."""
    return place == "changelog.md" or (place.startswith("decisions/") and not place.endswith("/index.md"))


def _plain(text: str) -> str:
    return text.replace("`", "")
