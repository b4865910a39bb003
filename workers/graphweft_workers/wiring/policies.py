"""The files of tokens and app policies that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphweft_contracts import InvalidSettings
from graphweft_workers.apps import AppPolicies, read_policies
from graphweft_workers.settings.settings import Settings

if TYPE_CHECKING:  # a command that looks at the files once need not wait for it
    from graphweft_workers.support.watched_file import WatchedFile


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
    """Return the faults of these files as they are now, by setting.

    A running process keeps the earlier content of a faulty file, and a new one does not start.
    """
    readers: dict[str, Callable[[Path], Any]] = {
        "gateway_tokens": _read_tokens,
        "console_tokens": _read_tokens,
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


def _read_tokens(path: Path) -> Any:
    from graphweft_workers.gateway.tokens import read_tokens  # a command without such a file need not wait for it

    return read_tokens(path)
