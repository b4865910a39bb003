"""What a driver need not promise is skipped by its name."""

from __future__ import annotations

import pytest


def promises(promised: bool, name: str) -> None:
    """Skip the test if the driver leaves a feature out."""
    if not promised:
        pytest.skip(f"the driver leaves out the feature {name!r}")
