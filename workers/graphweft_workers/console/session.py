"""What a token may see, and which apps, workflows and agents there are to choose from."""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts.layout import ALL_APPS
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources

_MOST: Final = 1_000


async def session(sources: Sources, viewer: Viewer, question: AppQuestion) -> dict[str, Any]:
    """Return the rights of the token, and the apps that are known: by their use, rules, or dead letters.

    If the question names an app, the answer says whether it is one of them.
    """
    asked = viewer.apps(question.app)
    apps = {viewer.token.app_id} if not viewer.all_apps else set[str]()
    if viewer.all_apps:
        status = await sources.status()
        apps |= {use.app_id for use in status.uses.apps}
        apps |= {scope for scope in status.rules if scope != ALL_APPS}
        apps |= {cause.app_id for cause in status.causes if cause.app_id is not None}
    return {
        "name": viewer.token.name,
        "all_apps": viewer.all_apps,
        "apps": sorted(apps)[:_MOST],
        "apps_total": len(apps),
        "knows_app": asked is None or asked in apps,
        "may_write": viewer.may_write,
        "redacts": sources.redacts,
    }
