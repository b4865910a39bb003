"""Tools from Go modules, and the schemas of what Kubernetes, KEDA and the Prometheus operator accept.

``python -m tests.services.go_tools`` builds and fetches them once into the user's cache, which takes minutes. Versions
are pinned: those of the tools and of all that they are built from by ``go.sum``, those of schemas by the hashes below.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.services.maven import cache, unavailable

__all__ = ("KUBERNETES", "make", "schemas", "tool")

_HERE: Final = Path(__file__).parent / "go"
_BUILD_S: Final = 1_800
KUBERNETES: Final = "1.36.0"
"""The version of Kubernetes that charts are rendered for, and of its schemas."""
_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "helm": ("helm.sh/helm/v3/cmd/helm",),
    # Without the clients of all clouds, which only the server asks for targets; with that of DNS, which ours uses.
    "promtool": ("-tags=remove_all_sd,enable_dns_sd", "github.com/prometheus/prometheus/cmd/promtool"),
    "compose": ("./compose",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Files of a Go module, by their names here. ``sum`` is the hash that go.sum would hold."""

    name: str
    version: str
    sum: str
    files: Mapping[str, str]


_CRDS: Final = "example/prometheus-operator-crd/monitoring.coreos.com"
_MODULES: Final = (
    Module(
        name="k8s.io/kubernetes", version="v1.36.3", sum="h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=",
        files={"kubernetes.json": "api/openapi-spec/swagger.json"},
    ),
    Module(
        name="github.com/kedacore/keda/v2", version="v2.21.0", sum="h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        files={"scaledobjects.yaml": "config/crd/bases/keda.sh_scaledobjects.yaml"},
    ),
    Module(
        name="github.com/prometheus-operator/prometheus-operator", version="v0.85.0",
        sum="h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        files={
            "servicemonitors.yaml": f"{_CRDS}_servicemonitors.yaml",
            "prometheusrules.yaml": f"{_CRDS}_prometheusrules.yaml",
        },
    ),
)  # fmt: skip


def folder() -> Path:
    """Return where tools and schemas are: the name ends with a hash of what pins them."""
    pins = (
        b"".join((_HERE / name).read_bytes() for name in ("go.mod", "go.sum", "compose/main.go"))
        + repr((_TOOLS, _MODULES)).encode()
    )
    return cache() / f"go-tools-{hashlib.sha256(pins).hexdigest()[:12]}"


def make() -> Path:
    """Build and fetch what is not there, and return its folder. Several processes may call it at once."""
    if shutil.which("go") is None:
        unavailable("go not found: install Go 1.26 or later to render the chart and to try the alerts")
    where = folder()
    if where.is_dir():
        return where
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.with_name(f"{where.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if where.is_dir():
            return where
        with tempfile.TemporaryDirectory(dir=where.parent, prefix=".go-tools-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for module in _MODULES:
                _fetch(module, Path(scratch), made)
            for name, package in _TOOLS.items():
                _go("build", "-ldflags=-s -w", "-o", str(made / name), *package, cwd=_HERE)
            made.rename(where)
    return where


def _fetch(module: Module, scratch: Path, made: Path) -> None:
    said = json.loads(_go("mod", "download", "-json", f"{module.name}@{module.version}", cwd=scratch))
    if said["Sum"] != module.sum:
        pytest.fail(f"{module.name}@{module.version} has the hash {said['Sum']}, not {module.sum}", pytrace=False)
    for name, path in module.files.items():
        shutil.copy(Path(said["Dir"]) / path, made / name)


def _go(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    try:
        done = subprocess.run(
            ["go", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=_BUILD_S
        )
    except subprocess.TimeoutExpired:
        unavailable(f"`go {arguments[0]}` took more than {_BUILD_S} s")
    if done.returncode:
        unavailable(f"`go {' '.join(arguments)}` failed: {(done.stdout + done.stderr).strip()[-1500:]}")
    return done.stdout


def _made() -> Path:
    if not folder().is_dir():
        pytest.skip(f"{folder()} is missing: python -m tests.services.go_tools makes it in some minutes")
    return folder()


def tool(name: str) -> str:
    """Return the path of a tool. Skips the test where it is not built yet."""
    return str(_made() / name)


@once
def schemas() -> Mapping[str, Any]:
    """Return JSON Schemas by ``apiVersion/kind``, strict about unknown fields."""
    made = _made()
    found: dict[str, Any] = {}
    swagger = json.loads((made / "kubernetes.json").read_text("utf-8"))
    for definition in swagger["definitions"].values():
        _close(definition)
    for name, definition in swagger["definitions"].items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            version = f"{kind['group']}/{kind['version']}".lstrip("/")
            found[f"{version}/{kind['kind']}"] = {
                "$ref": f"#/definitions/{name}", "definitions": swagger["definitions"],
            }  # fmt: skip
    for file in ("scaledobjects", "servicemonitors", "prometheusrules"):
        crd = yaml.safe_load((made / f"{file}.yaml").read_text("utf-8"))["spec"]
        for version in crd["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            _close(schema)
            # Metadata is an object of Kubernetes in any case.
            schema["properties"]["metadata"] = {"type": "object"}
            found[f"{crd['group']}/{version['name']}/{crd['names']['kind']}"] = schema
    return found


def _close(schema: Any) -> None:
    """Let no object have other fields than those that it names, as a server with strict validation; recursively."""
    if not isinstance(schema, dict):
        return
    if schema.pop("x-kubernetes-int-or-string", False) or schema.get("format") == "int-or-string":
        schema.pop("type", None)
    schema.pop("format", None)
    if (
        "properties" in schema
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        schema["additionalProperties"] = False
    for key in ("properties",):
        for each in schema.get(key, {}).values():
            _close(each)
    for key in ("items", "additionalProperties"):
        _close(schema.get(key))
    for key in ("allOf", "anyOf", "oneOf"):
        for each in schema.get(key, []):
            if "properties" in each:
                continue  # it limits fields that are named elsewhere
            _close(each)


if __name__ == "__main__":
    try:
        print(f"{make()} is ready")
    except (pytest.skip.Exception, pytest.fail.Exception) as reason:
        sys.exit(str(reason))
