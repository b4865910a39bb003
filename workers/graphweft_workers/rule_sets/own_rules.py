"""Apps with rules of their own, which those of all apps do not reach, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphweft_contracts.rules_log import SHARED_RULES, Activation, StoredRules, own_rules
from graphweft_workers.ports.rules_log import RulesLog

_MOST: Final = 5


async def share_rules(log: RulesLog, app_id: str) -> Activation:
    """Let an app follow the rules of all apps from here on. Raises ``BusUnavailable``."""
    await log.store(SHARED_RULES, StoredRules(files={}))
    return await log.activate(app_id, SHARED_RULES)


def own_rules_note(activations: Sequence[Activation]) -> str:
    """Return which apps do not follow the rules of all apps, and how to change it; an empty text without any."""
    apps = [*own_rules(activations)]
    if not apps:
        return ""
    names = ", ".join(apps[:_MOST]) + (f" and {len(apps) - _MOST} more" if len(apps) > _MOST else "")
    one = len(apps) == 1
    return (
        f"rules of all apps do not reach {names}, which {'has rules of its' if one else 'have rules of their'} own: "
        f"`graphweft rules unset --app {apps[0] if one else 'APP'}` makes {'it' if one else 'an app'} follow them again"
    )
