"""Markdown as text: links outside of code, headings and their anchors, tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

_FENCE: Final = re.compile(r"^ {0,3}(```+|~~~+)")
_CODE: Final = re.compile(r"(`+)(?:.+?)\1")
_LINK: Final = re.compile(r"(\]\()([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(\))")
_ITEM: Final = re.compile(r"(?:\d+\.|[-*]) +(?=\S)")
_HEADING: Final = re.compile(r"^(#{1,6}) +(.+?) *#*$")


def lines_outside_code(text: str) -> Iterator[tuple[int, str, bool]]:
    """Give each line with its index, and whether it is text and not code."""
    fence = ""
    for index, line in enumerate(text.split("\n")):
        found = _FENCE.match(line)
        if fence:
            yield index, line, False
            if found and found[1].startswith(fence):
                fence = ""
        elif found:
            fence = found[1]
            yield index, line, False
        else:
            yield index, line, True


def replace_links(text: str, change: Callable[[str], str]) -> str:
    """Return the text with ``change(target)`` in place of the target of each link and picture outside of code."""
    return "\n".join(
        _with_changed(line, change) if is_text and "](" in line else line
        for _, line, is_text in lines_outside_code(text)
    )


def _with_changed(line: str, change: Callable[[str], str]) -> str:
    codes = [match.span() for match in _CODE.finditer(line)]

    def changed(match: re.Match[str]) -> str:
        at = match.start(2)
        inside = any(start < at < end for start, end in codes)
        return match[0] if inside else f"{match[1]}{change(match[2])}{match[3]}"

    return _LINK.sub(changed, line)


def links(text: str) -> list[str]:
    """Return the targets of the links and pictures outside of code."""
    found: list[str] = []

    def keep(target: str) -> str:
        found.append(target)
        return target

    replace_links(text, keep)
    return found


def headings(text: str) -> list[tuple[int, str]]:
    """Return level and text of each heading."""
    return [
        (len(match[1]), match[2])
        for _, line, is_text in lines_outside_code(text)
        if is_text and (match := _HEADING.match(line))
    ]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    seen: dict[str, int] = {}
    found: set[str] = set()
    for _, heading in headings(text):
        name = slug(heading)
        times = seen.get(name, 0)
        seen[name] = times + 1
        found.add(f"{name}-{times}" if times else name)
    return found


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def title(text: str) -> str:
    """Return the first heading."""
    return next((name for _, name in headings(text)), "")


def first_paragraph(text: str) -> str:
    """Return the first paragraph of plain text, on one line, without links."""
    words: list[str] = []
    for _, line, is_text in lines_outside_code(text):
        plain = is_text and line and not line.startswith(("#", "|", "<", "!", "-", ">"))
        if plain:
            words.append(line.strip())
        elif words:
            break
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(words))


def for_site(text: str) -> str:
    """Return a page as the site reads it: content of a list item has four blanks, and code in a cell plain pipes.

    A forge takes as many blanks as the mark of the item is wide, and needs pipes of cells escaped in code too.
    """
    lines: list[str] = []
    width = 0
    for _, line, is_text in lines_outside_code(text):
        if is_text and (item := _ITEM.match(line)):
            if lines and lines[-1].startswith("    "):  # behind a block, an item needs an empty line before it
                lines.append("")
            width = len(item[0])
        elif width and line.startswith(" " * width):
            lines.append(" " * max(4 - width, 0) + line)
            continue
        elif line:
            width = 0
        in_table = is_text and line.startswith("|")
        lines.append(_CODE.sub(lambda match: match[0].replace("\\|", "|"), line) if in_table else line)
    return "\n".join(lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; pipes and line breaks in cells are escaped."""
    cells = [[_cell(each) for each in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\|", "|").replace("|", "\\|")


def code(text: object) -> str:
    """Return the value as code of a line."""
    return f"`{text}`"
