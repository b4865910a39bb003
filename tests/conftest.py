"""What all tests share: real servers, each started by the first test that needs it."""

from __future__ import annotations

pytest_plugins = [
    "tests.services.fixtures",
    "tests.services.model_environment",
    "tests.services.models",
    "tests.services.runtime_environments",
]
