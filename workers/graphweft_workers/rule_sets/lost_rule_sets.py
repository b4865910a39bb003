"""Which activated rule sets the bus has lost, and what to do about it, for people."""

from __future__ import annotations

from collections.abc import Iterable

from graphweft_contracts.rules_log import SHARED_RULES, Activation
from graphweft_workers.ports.rules_log import RulesLog


async def lost_rule_sets(log: RulesLog, activations: Iterable[Activation]) -> dict[str, Activation]:
    """Return the lost rule sets of these activations by their digest, each with its newest activation.

    It reads the rule sets one by one. Raises ``BusUnavailable``.
    """
    newest = {each.digest: each for each in activations if each.digest != SHARED_RULES}
    return {digest: each for digest, each in newest.items() if await log.stored(digest) is None}


def how_to_restore(lost: Activation) -> str:
    """Return what a lost rule set is, and what to do."""
    scope = "the past of an app" if lost.restates else f"the app {lost.scope}" if lost.scope != "*" else "all apps"
    option = "" if lost.restates or lost.scope == "*" else f" --app {lost.scope}"
    since = f"{lost.time:%Y-%m-%d %H:%M:%SZ}"
    return (
        f"the bus has lost the rule set {lost.digest[:12]}, last activated for {scope} at {since}. Events that need it "
        f"wait: check out the files of that time, and run `graphweft rules push FOLDER{option}`"
    )
