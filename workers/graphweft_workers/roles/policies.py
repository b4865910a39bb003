"""The app policies that the settings name."""

from __future__ import annotations

from graphweft_workers.apps import AppPolicies, read_policies
from graphweft_workers.roles.settings import Settings
from graphweft_workers.watched_file import WatchedFile


def open_policies(settings: Settings) -> WatchedFile[AppPolicies] | None:
    """Return the policies, which follow the file while ``follow`` runs; None if the settings name no file.

    Raises ``InvalidSettings`` with each fault of the file.
    """
    return None if settings.apps is None else WatchedFile(settings.apps, read_policies)
