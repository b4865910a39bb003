"""The compose file as Docker Compose reads it, and the environment that units of systemd give."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.services.go_tools import tool

__all__ = ("compose", "image_environment", "unit_environment")

ROOT: Final = Path(__file__).parents[2]


def compose(**variables: str) -> dict[str, Any]:
    """Return the services of compose.yaml, of all profiles, with these variables and no others."""
    done = subprocess.run(
        [tool("compose"), "compose.yaml"], cwd=ROOT, env={"PATH": os.environ["PATH"], **variables},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    for service in services.values():
        service["environment"] = service.get("environment") or {}
    return services


def image_environment() -> dict[str, str]:
    """Return the variables that the image gives to its process, but for its PATH."""
    text = (ROOT / "deploy/Dockerfile").read_text("utf-8").replace("\\\n", " ")
    found = dict(re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"(?m)^ENV (.*)$", text))))
    return {name: value for name, value in found.items() if name != "PATH"}


def unit_environment(role: str) -> dict[str, str]:
    """Return the variables that the unit of a role gives to its process."""
    found: dict[str, str] = {}
    folder = ROOT / "deploy/systemd"
    for line in (folder / "graphweft@.service").read_text("utf-8").splitlines():
        if line.startswith("Environment="):
            found |= dict(each.split("=", 1) for each in shlex.split(line.removeprefix("Environment=")))
    for line in (folder / "graphweft.env").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name] = value
    return {name: value.replace("%i", role) for name, value in found.items()}
