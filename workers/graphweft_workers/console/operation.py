"""The page *Operation*: what ``graphweft status`` knows, for all apps or for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from graphweft_contracts import Layout
from graphweft_contracts.layout import ALL_APPS
from graphweft_workers.wiring.status import ServiceStatus

MOST: Final = 200
"""Rows of each table."""


def operation(
    status: ServiceStatus,
    layout: Layout,
    app_id: str | None,
    *,
    all_apps: bool,
    uses: Callable[[str, str], bool] = lambda app_id, workflow: True,
) -> dict[str, Any]:
    """Return the state for the page; with ``app_id``, nothing of other apps. ``all_apps``: the viewer may see all.

    ``uses`` tells whether the viewer may see the rules of an app's workflow.
    """
    found = status.to_json()
    partitions = {each.id: each for each in status.partitions}
    for row in found["partitions"]:
        row["written"] = partitions[row["id"]].written
    causes: list[dict[str, Any]] = found["without_effect"]
    found["causes_partly"] = sum(row["letters"] for row in causes) < found["dead_letters"]
    found["without_effect"] = [
        row for row in causes if None in (row["app_id"], row["workflow"]) or uses(row["app_id"], row["workflow"])
    ]
    if app_id is not None:
        found = _of_app(found, layout, app_id, named=all_apps)
    for name in ("without_effect", "apps", "parked", "rules"):
        rows = found[name]
        found[name], found[f"{name}_total"] = rows[:MOST], len(rows)
    return found


def _of_app(found: dict[str, Any], layout: Layout, app_id: str, *, named: bool) -> dict[str, Any]:
    """Leave out what belongs to other apps. Apps share a partition, so its position and its lag are of all of them."""
    own = layout.partitions_of(app_id)
    apps = [row for row in found["apps"] if row["app_id"] == app_id]
    causes = [row for row in found["without_effect"] if row["app_id"] == app_id]
    partitions: list[dict[str, Any]] = [
        row if named else {**row, "owner": row["owner"] and "a worker", "written": None}
        for row in found["partitions"]
        if row["id"] in own
    ]
    letters = apps[0]["dead_letters"] if apps else sum(row["letters"] for row in causes)
    rules = [row for row in found["rules"] if row["app_id"] == app_id]
    return {
        "causes_partly": found["causes_partly"],
        "partitions": partitions,
        "lag": sum(row["lag"] for row in partitions),
        "dead_letters": letters,
        "without_effect": causes,
        "rules": rules or [row for row in found["rules"] if row["app_id"] == ALL_APPS],
        "archive": None,
        "apps": apps,
        "faulty_files": {},
        "faulty_rules": [],
        "parked": [row for row in found["parked"] if row["app_id"] == app_id],
    }
