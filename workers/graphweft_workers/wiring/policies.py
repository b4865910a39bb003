"""The files of tokens and app policies that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.apps import AppPolicies, read_policies
from graphweft_workers.settings.settings import Settings

if TYPE_CHECKING:  # a command that looks at the files once need not wait for it
    from graphweft_workers.gateway.tokens import Tokens
    from graphweft_workers.support.watched_file import WatchedFile

_SOON: Final = timedelta(days=7)


def open_policies(settings: Settings) -> WatchedFile[AppPolicies] | None:
    """Return the policies, which follow the file while ``follow`` runs; None if the settings name no file.

    Raises ``InvalidSettings`` with each fault of the file.
    """
    if settings.apps is None:
        return None
    from graphweft_workers.support.watched_file import WatchedFile

    return WatchedFile(settings.apps, read_policies)


def may_use(policies: WatchedFile[AppPolicies] | None) -> Callable[[str, str], bool]:
    """Return what tells whether an app may use a workflow, by the policies of the moment; without any, it may."""

    def allowed(app_id: str, workflow: str) -> bool:
        return policies is None or policies.current.allows_workflow(app_id, workflow)

    return allowed


def file_faults(settings: Settings) -> dict[str, str]:
    """Return the faults of these files as they are now, by setting, whose name begins each line of a fault.

    A running process keeps the earlier content of a faulty file, and a new one does not start.
    """
    readers: dict[str, Callable[[Path], Any]] = {
        "gateway_tokens": partial(_read_tokens, setting="gateway_tokens"),
        "console_tokens": partial(_read_tokens, setting="console_tokens"),
        "apps": read_policies,
    }
    faults: dict[str, str] = {}
    for setting, read in readers.items():
        path: Path | None = getattr(settings, setting)
        if path is None:
            continue
        try:
            read(path)
        except InvalidSettings as error:
            faults[setting] = str(error)
    return faults


def token_ends(settings: Settings, now: datetime) -> tuple[list[str], list[str]]:
    """Return the tokens of the files that have expired, and those that will within a week. Faulty files have none."""
    expired: list[str] = []
    soon: list[str] = []
    for path in dict.fromkeys((settings.gateway_tokens, settings.console_tokens)):
        if path is None:
            continue
        try:
            tokens = _read_tokens(path).all
        except InvalidSettings:
            continue
        for each in tokens:
            if each.expires is None or each.expires > now + _SOON:
                continue
            text = f"{each.name or 'without a name'} of app {each.app_id!r} at {each.expires:%Y-%m-%d %H:%MZ}"
            (expired if each.has_expired(now) else soon).append(text)
    return expired, soon


def _read_tokens(path: Path, setting: str = "gateway_tokens") -> Tokens:
    from graphweft_workers.gateway.tokens import read_tokens  # a command without such a file need not wait for it

    return read_tokens(path, setting)
