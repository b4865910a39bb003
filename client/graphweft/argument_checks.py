"""Checks of arguments of an object where it is built: later, each turn would go on without context."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphweft_contracts import InvalidSettings


def check_budget(budget_ms: object) -> None:
    """Raise ``InvalidSettings`` unless this is a number of milliseconds above 0. Callers may be untyped."""
    if isinstance(budget_ms, bool) or not isinstance(budget_ms, int | float) or not budget_ms > 0:
        raise InvalidSettings(f"invalid budget_ms {budget_ms!r}: expected a number of milliseconds above 0")


def check_max_tokens(max_tokens: object) -> None:
    """Raise ``InvalidSettings`` unless this is a whole number above 0, or None."""
    if max_tokens is None:
        return
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise InvalidSettings(
            f"invalid max_tokens {max_tokens!r}: expected a whole number above 0, or None for no limit"
        )


def check_app(app_id: object, name: str = "app_id") -> None:
    """Raise ``InvalidSettings`` unless this can be the name of an app, or is None. ``name`` is that of the argument."""
    if app_id is None:
        return
    from graphweft_contracts.events import APP_ID_PATTERN, FORMS

    if app_id == "":
        raise InvalidSettings(f"{name} is empty: name the app, or leave it out")
    if not isinstance(app_id, str) or not re.fullmatch(APP_ID_PATTERN, app_id):
        raise InvalidSettings(f"invalid {name} {app_id!r}: {FORMS[APP_ID_PATTERN]}")


def check_scope(scope: Mapping[str, object]) -> None:
    """Raise ``InvalidSettings`` unless memories can belong to a scope; ``scope`` has its values by their arguments."""
    from graphweft_contracts.memory import LONGEST_SCOPE, SCOPE_PATTERN

    for name, value in scope.items():
        if not isinstance(value, str) or not re.fullmatch(SCOPE_PATTERN, value) or len(value) > LONGEST_SCOPE:
            raise InvalidSettings(
                f"invalid {name} {value!r}: memories belong to it, so it has 1 to {LONGEST_SCOPE} characters, no "
                "control characters and no blank at either end; with remember=False any other is taken"
            )
