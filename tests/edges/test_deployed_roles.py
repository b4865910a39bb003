"""Each role starts from the wheel with exactly the variables that chart, compose file and units give it.

Addresses of servers, ports and folders are replaced. Files of Secrets and ConfigMaps lie as the kubelet lays them out.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.edges.test_probes import asked
from tests.services.charts import ROOT, deployment, of_kind, render
from tests.services.compositions import compose, image_environment, unit_environment
from tests.services.maven import free_port
from tests.services.waiting import until
from tests.services.wheels import command, installed

from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.ontologies import load_ontologies

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROLES: Final = ("mutation", "injection", "memory", "archive", "gateway", "console")
RULES: Final = ROOT / "examples/airline/workflows"
ONTOLOGY: Final = ROOT / "examples/crm-episodes/ontologies/crm_v1.yaml"
SECRET: Final = "s" * 43
TOKENS: Final = "tokens: []\n"
_START_S: Final = 170


@dataclass(frozen=True, kw_only=True)
class Role:
    """What starts a role, and the content of what is mounted: by its path in the container."""

    arguments: list[str]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    linked: bool = False
    """Whether folders are those of a mounted Secret or ConfigMap."""


def of_compose() -> dict[str, Role]:
    folders = {
        "/gateway": {"/gateway/tokens.yaml": TOKENS}, "/console": {"/console/tokens.yaml": TOKENS},
        "/rules": rules("/rules"), "/ontologies": ontologies("/ontologies"), "/archive": dict[str, str](),
    }  # fmt: skip
    found = {}
    variables = {"GRAPHWEFT_EMBEDDER": "hash:32", "FALKORDB_PASSWORD": ""}
    for name, service in compose(**variables).items():
        if service.get("build") and not name.startswith("kafka"):
            mounted = (folders[each["target"]] for each in service["volumes"])
            files = {path: text for folder in mounted for path, text in folder.items()}
            role = Role(
                arguments=service["command"], environment=image_environment() | service["environment"], files=files
            )
            found[service["command"][1]] = role
    return found


def of_chart(folder: Path) -> dict[str, Role]:
    values: dict[str, Any] = {
        "archive": {"enabled": True, "existingClaim": "archive"},
        "memory": {"enabled": True},
        "embedder": {"name": "hash:32", "existingSecret": "models"},
        "gateway": {"enabled": True, "existingSecret": "tokens", "signingSecret": "signing"},
        "console": {"enabled": True, "existingSecret": "tokens"},
        "signing": {"existingSecret": "signing"},
        "settings": {"memory_keep_count": 1_000_000},
        "appPolicies": {"default": {"workflows": ["AirlineSupport"]}},
        "rules": {"files": {path.removeprefix("/rules/"): text for path, text in rules("/rules").items()}},
        "ontologies": {"crm_v1.yaml": ONTOLOGY.read_text("utf-8")},
    }
    objects = render(
        folder, {**values, "image": {"repository": "graphweft", "tag": "1.2.3"}, "falkordb": {"enabled": True}}
    )
    # Apps without keys need no signature, so what other tests send is accepted.
    keys = {
        "keys": [{"id": "worker-1", "role": "worker", "secret_file": "worker.secret", "from": "2026-01-01T00:00:00Z"}]
    }
    secrets = {
        "tokens": {"tokens.yaml": TOKENS},
        "models": {"api-key": "key\n"},
        "signing": {
            "keys.yaml": yaml.safe_dump(keys),
            "worker.secret": f"{SECRET}\n",
            "signing-key": f"gateway-1:{SECRET}\n",
        },
    }
    maps = {name: each["data"] for name, each in of_kind(objects, "ConfigMap").items()}
    found = {}
    for role in ("worker", "responder", "memory", "archive", "gateway", "console"):
        pod = deployment(objects, role)["spec"]["template"]["spec"]
        [container] = pod["containers"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        files: dict[str, str] = {}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "secret" in volume:
                content = secrets[volume["secret"]["secretName"]]
            elif "configMap" in volume:
                content = maps[volume["configMap"]["name"]]
            else:
                continue
            if "subPath" in mount:
                files[mount["mountPath"]] = content[mount["subPath"]]
            else:
                files |= {f"{mount['mountPath']}/{name}": text for name, text in content.items()}
        variables = {each["name"]: each["value"] for each in container["env"]}
        found[container["args"][1]] = Role(
            arguments=container["args"], environment=image_environment() | variables, files=files, linked=True
        )
    return found


def of_units() -> dict[str, Role]:
    files = {"/etc/graphweft/gateway-tokens.yaml": TOKENS, "/etc/graphweft/console-tokens.yaml": TOKENS}
    copied = {"workflows": rules, "ontologies": ontologies}
    for source, target in re.findall(r"(?m)^cp -r (\S+) (\S+)", (ROOT / "docs/systemd.md").read_text("utf-8")):
        files |= copied[source](target)
    more = {"GRAPHWEFT_PROBE_ADDRESS": "127.0.0.1:8081", "GRAPHWEFT_MEMORY_KEEP_DAYS": "30"}
    return {
        role: Role(arguments=["run", role], environment=unit_environment(role) | more, files=files) for role in ROLES
    }


def roles_of(origin: str, folder: Path) -> dict[str, Role]:
    makers: dict[str, Callable[[], dict[str, Role]]] = {
        "chart": lambda: of_chart(folder), "compose": of_compose, "units": of_units,
    }  # fmt: skip
    found = makers[origin]()
    assert found.keys() == set(ROLES)
    return found


def rules(folder: str) -> dict[str, str]:
    return {
        f"{folder}/{file.relative_to(RULES)}": file.read_text("utf-8")
        for file in sorted(RULES.rglob("*.yaml"))
        if not file.name.endswith("_test.yaml")
    }


def ontologies(folder: str) -> dict[str, str]:
    return {f"{folder}/crm_v1.yaml": ONTOLOGY.read_text("utf-8")}


def lay_out(role: Role, root: Path) -> None:
    """Write the files below ``root``; as the kubelet, which makes each a link into a folder that it can exchange."""
    for path, text in role.files.items():
        file = root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if role.linked and not path.startswith("/rules/"):
            held = file.parent / "..2026_01_01"
            held.mkdir(exist_ok=True)
            (held / file.name).write_text(text, "utf-8")
            if not (file.parent / "..data").exists():
                (file.parent / "..data").symlink_to("..2026_01_01")
            file.symlink_to(Path("..data") / file.name)
        else:
            file.write_text(text, "utf-8")


def placed(role: Role, root: Path, url: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return arguments and variables with addresses, ports and folders of this machine."""
    changed = {}
    for name, value in role.environment.items():
        if name in ("GRAPHWEFT_BUS_URL", "GRAPHWEFT_GRAPH_URL"):
            value = url  # noqa: PLW2901
        elif name == "GRAPHWEFT_PROBE_ADDRESS":
            value = f"127.0.0.1:{port}"  # noqa: PLW2901
        elif value.startswith("/"):
            value = str(root / value.removeprefix("/"))  # noqa: PLW2901
        changed[name] = value
    changed.setdefault("GRAPHWEFT_HEARTBEAT_DIR", str(root / "tmp"))
    arguments = [each.replace("0.0.0.0", "127.0.0.1") for each in role.arguments]
    if role.arguments[1] in ("gateway", "console"):
        arguments.append(f"--port={free_port()}")
    return arguments, changed


@pytest.mark.parametrize("origin", ["chart", "compose", "units"])
def test_every_role_but_the_archive_reads_the_same_ontologies(
    origin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A gateway without them would refuse messages that the workers know."""
    known = {}
    for name, role in roles_of(origin, tmp_path).items():
        root = tmp_path / name
        (root / "work").mkdir(parents=True)
        lay_out(role, root)
        with monkeypatch.context() as patch:
            for variable in [each for each in os.environ if each.startswith("GRAPHWEFT_")]:
                patch.delenv(variable)
            for variable, value in placed(role, root, "redis://127.0.0.1:1", 1)[1].items():
                patch.setenv(variable, value)
            patch.chdir(root / "work")
            known[name] = "crm_v1" in load_ontologies(Settings.load()).ids
    del known["archive"]
    assert known == dict.fromkeys(known, True)


@pytest.mark.long("units", "chart")
@pytest.mark.timeout(_START_S + 60)
@pytest.mark.parametrize("origin", ["chart", "compose", "units"])
async def test_every_role_starts_with_its_variables(origin: str, url: str, tmp_path: Path) -> None:
    roles = roles_of(origin, tmp_path)
    installed()
    started: dict[str, tuple[subprocess.Popen[bytes], int, Path]] = {}
    try:
        for name, role in roles.items():
            root = tmp_path / name
            (root / "work").mkdir(parents=True)
            lay_out(role, root)
            port = free_port()
            arguments, environment = placed(role, root, url, port)
            log = root / "log"
            process = command(*arguments, environment=environment, folder=root / "work", log=log)
            started[name] = (process, port, log)
        for name, (process, port, log) in started.items():

            async def ready(process: subprocess.Popen[bytes] = process, port: int = port) -> tuple[int, dict[str, Any]]:
                if process.poll() is not None:
                    return -1, {}
                try:
                    return await asyncio.to_thread(asked, f"http://127.0.0.1:{port}/readyz")
                except OSError:
                    return 0, {}

            status, said = await until(ready, lambda found: found[0] in (200, -1))
            assert status == 200, f"{name}: {log.read_text()[-3000:]}"
            assert said["role"] == name
            assert '"unknown_variable"' not in log.read_text(), "what is set is a setting"
    finally:
        for process, _, _ in started.values():
            process.send_signal(signal.SIGTERM)
        for process, _, _ in started.values():
            process.wait(60)
    for name, (process, _, log) in started.items():
        assert process.returncode == 0, f"{name}: {log.read_text()[-3000:]}"


def test_the_loop_of_the_page_makes_values_of_a_folder(tmp_path: Path) -> None:
    [script] = re.findall(
        r"```sh\n(cd workflows && .*?)```", (ROOT / "docs/kubernetes.md").read_text("utf-8"), re.DOTALL
    )
    (tmp_path / "workflows").symlink_to(RULES)
    subprocess.run(
        ["sh", "-c", script.replace("../rules-values.yaml", f"{tmp_path}/rules-values.yaml")],
        cwd=tmp_path, check=True, env={"PATH": os.environ["PATH"]}, timeout=60,
    )  # fmt: skip
    made = yaml.safe_load((tmp_path / "rules-values.yaml").read_text("utf-8"))["rules"]["files"]
    assert made == {path.removeprefix("/rules/"): text for path, text in rules("/rules").items()}
