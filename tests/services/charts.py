"""The Helm chart as helm renders it, and what its objects must be."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from tests.services.go_tools import KUBERNETES, tool

__all__ = ("CHART", "EXAMPLES", "ChartError", "deployment", "example", "helm", "of_kind", "render", "variables")

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/chart"
EXAMPLES: Final = ("trial", "redis-falkordb", "kafka-neo4j")
type Object = dict[str, Any]


class ChartError(Exception):
    """What helm says of values that it refuses."""


def helm(*arguments: str) -> str:
    """Run helm and return what it prints. Raises ``ChartError``."""
    done = subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise ChartError("\n".join(line for line in done.stderr.splitlines() if "symbolic link" not in line))
    return done.stdout


def render(folder: Path, *values: Mapping[str, Any], chart: Path = CHART, example: str = "") -> list[Object]:
    """Return the objects that the chart makes of values, which are written below ``folder``; later ones win."""
    files = [CHART / f"examples/{example}.yaml"] if example else []
    for number, each in enumerate(values):
        files.append(folder / f"values-{number}.yaml")
        files[-1].write_text(json.dumps(each), "utf-8")
    said = helm(
        *("template", "gw", str(chart), "--namespace", "prod", "--kube-version", KUBERNETES),
        *(word for file in files for word in ("--values", str(file))),
    )
    return [each for each in yaml.safe_load_all(said) if each]


@cache
def example(name: str) -> tuple[Object, ...]:
    """Return the objects of one of the files of values that come with the chart."""
    return tuple(render(Path(), example=name))


def of_kind(objects: tuple[Object, ...] | list[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind by their names."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def deployment(objects: tuple[Object, ...] | list[Object], role: str) -> Object:
    """Return the Deployment of a role."""
    return of_kind(objects, "Deployment")[f"gw-graphweft-{role}"]


def variables(owner: Object) -> dict[str, str]:
    """Return the variables with a value that a Deployment or a Job gives its container."""
    [container] = owner["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}
