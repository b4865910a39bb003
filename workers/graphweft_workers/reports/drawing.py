"""A picture of a part of a graph, as a page without scripts or as Mermaid text. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from graphweft_contracts.plurals import counted

_COLOURS: Final = ("#2f7fa8", "#c0772a", "#4f8f42", "#8a5fb0", "#b54a5b", "#3d8f86", "#8d7a25", "#6b7780")
_STEPS: Final = 150
"""Rounds of the layout; each compares all pairs of nodes."""
_WIDTH: Final = 1_200
_HEIGHT: Final = 800
_MARGIN: Final = 60
_SHORT: Final = 24
"""Characters of a caption in the picture; the table has all."""
_STYLE: Final = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:24px;color:#1b2126;background:#fff}"
    "svg{max-width:100%;height:auto;border:1px solid #d3d8dd;border-radius:8px}"
    "text{font:10px system-ui,sans-serif;fill:#1b2126}line{stroke:#8a949d}"
    "h1,td,th{unicode-bidi:isolate}"
    "td,th{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid #d3d8dd;vertical-align:top}"
    "table{border-collapse:collapse;margin-top:18px}"
)

type Element = Mapping[str, Any]


def as_html(app_id: str, nodes: Sequence[Element], relationships: Sequence[Element], total: int) -> str:
    """Return a page with the picture and a table of its nodes. All text is escaped, and there is no script."""
    places = layout([each["id"] for each in nodes], [(each["start"], each["end"]) for each in relationships])
    labels = sorted({_label(each) for each in nodes})
    lines = [
        f'<line x1="{places[each["start"]][0]}" y1="{places[each["start"]][1]}" x2="{places[each["end"]][0]}" '
        f'y2="{places[each["end"]][1]}" marker-end="url(#end)"><title>{escape(str(each["type"]))}</title></line>'
        for each in relationships
    ]
    dots = [
        f'<g><title>{escape(_caption(each))}</title><circle cx="{places[each["id"]][0]}" cy="{places[each["id"]][1]}" '
        f'r="9" fill="{_COLOURS[labels.index(_label(each)) % len(_COLOURS)]}"/>'
        f'<text x="{places[each["id"]][0]}" y="{places[each["id"]][1] + 20}" text-anchor="middle">'
        f"{escape(_short(_caption(each)))}</text></g>"
        for each in nodes
    ]
    rows = [f"<tr><td>{escape(_caption(each))}</td><td>{escape(', '.join(each['labels']))}</td></tr>" for each in nodes]
    said = f"{len(nodes):,} of {counted(total, 'node')} and {counted(len(relationships), 'relationship')}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(app_id)} · graphweft</title><style>{_STYLE}</style></head><body>"
        f"<h1>The graph of {escape(app_id)}</h1><p>A sample: {said}.</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Picture of {said}; the table lists the nodes">'
        '<defs><marker id="end" viewBox="0 0 8 8" refX="18" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8Z" fill="#8a949d"/></marker></defs>'
        f"{''.join(lines)}{''.join(dots)}</svg>"
        f"<table><thead><tr><th>Node</th><th>Labels</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        "</body></html>\n"
    )


def as_mermaid(nodes: Sequence[Element], relationships: Sequence[Element]) -> str:
    """Return the picture as a Mermaid flowchart."""
    names = {each["id"]: f"n{number}" for number, each in enumerate(nodes)}
    lines = ["flowchart LR"]
    for each in nodes:
        lines.append(f'  {names[each["id"]]}["{_mermaid(_short(_caption(each)))} : {_mermaid(_label(each))}"]')
    for each in relationships:
        lines.append(f'  {names[each["start"]]} -- "{_mermaid(str(each["type"]))}" --> {names[each["end"]]}')
    return "\n".join(lines) + "\n"


def layout(ids: Sequence[Any], pairs: Sequence[tuple[Any, Any]]) -> dict[Any, tuple[int, int]]:
    """Return a place for each node: nodes push each other away, and relationships pull. It is the same each time."""
    if not ids:
        return {}
    at = [(math.sqrt(n + 0.5) * math.cos(n * 2.4), math.sqrt(n + 0.5) * math.sin(n * 2.4)) for n in range(len(ids))]
    index = {each: number for number, each in enumerate(ids)}
    pulls = [(index[start], index[end]) for start, end in pairs if start != end]
    for step in range(_STEPS):
        at = _one_step(at, pulls, limit=0.6 * (1 - step / _STEPS) + 0.02)
    xs, ys = [x for x, _ in at], [y for _, y in at]
    wide, high = max(max(xs) - min(xs), 0.1), max(max(ys) - min(ys), 0.1)
    return {
        each: (
            round(_MARGIN + (at[number][0] - min(xs)) / wide * (_WIDTH - 2 * _MARGIN)),
            round(_MARGIN + (at[number][1] - min(ys)) / high * (_HEIGHT - 2 * _MARGIN)),
        )
        for each, number in index.items()
    }


def _one_step(
    at: Sequence[tuple[float, float]], pulls: Sequence[tuple[int, int]], *, limit: float
) -> list[tuple[float, float]]:
    force = [[-0.25 * x, -0.25 * y] for x, y in at]  # to the middle, so that parts stay together
    for one in range(len(at)):
        for other in range(one):
            x, y = at[one][0] - at[other][0], at[one][1] - at[other][1]
            push = 1.0 / (x * x + y * y + 0.05)
            force[one][0] += x * push
            force[one][1] += y * push
            force[other][0] -= x * push
            force[other][1] -= y * push
    for start, end in pulls:
        x, y = at[end][0] - at[start][0], at[end][1] - at[start][1]
        pull = 0.06 * math.hypot(x, y)
        force[start][0] += x * pull
        force[start][1] += y * pull
        force[end][0] -= x * pull
        force[end][1] -= y * pull
    found: list[tuple[float, float]] = []
    for (x, y), (dx, dy) in zip(at, force, strict=True):
        length = math.hypot(dx, dy)
        scale = min(limit, length) / length if length else 0.0
        found.append((x + dx * scale, y + dy * scale))
    return found


def _caption(each: Element) -> str:
    return f"node {each['id']}" if each["caption"] is None else str(each["caption"])


def _label(each: Element) -> str:
    return str(each["labels"][0]) if each["labels"] else "no label"


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _mermaid(text: str) -> str:
    """Return text for a Mermaid label: characters with a meaning become codes."""
    return "".join(
        char if char.isalnum() or char in " _-.,/…@" else " " if char.isspace() else f"#{ord(char)};" for char in text
    )
