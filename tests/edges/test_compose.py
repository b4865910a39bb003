"""The compose file and the units as Docker Compose and systemd read them: variables, services, what is watched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.services.charts import ROOT
from tests.services.compositions import compose, unit_environment
from tests.services.go_tools import tool

from graphweft_workers.settings.settings import Settings

OBSERVABILITY: Final = ROOT / "deploy/observability"
READERS: Final = ("worker", "responder", "memory", "console", "kafka-neo4j-worker", "kafka-neo4j-responder")


def settings_of(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Settings:
    for name in [*os.environ]:
        if name.startswith(("GRAPHWEFT_", "NEO4J_", "OPENAI_", "MODEL_", "GRAPH")):
            monkeypatch.delenv(name)
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return Settings.load()


def test_variables_reach_the_settings_of_the_roles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    services = compose(
        FALKORDB_PASSWORD="p/w", EMBEDDING_MODEL_NAME="embed-1", OPENAI_BASE_URL="http://models:8000/v1",
        OPENAI_API_KEY="key", MODEL_NAME="read-1", GRAPHWEFT_EXTRACTOR="graphiti", GRAPHRAG_ENABLED="true",
        GRAPHWEFT_MEMORY_KEEP_DAYS="30", GRAPHWEFT_MEMORY_KEEP_COUNT="500", GRAPHWEFT_MEMORY_SUMMARISE_AFTER="40",
        GRAPHWEFT_RULES="/mine/workflows", ONTOLOGIES="/mine/ontologies",
    )  # fmt: skip
    for name in READERS:
        found = settings_of(services[name], monkeypatch, tmp_path)
        assert (found.embedder, found.embedder_url) == ("openai:embed-1", "http://models:8000/v1")
        assert (found.extractor, found.extractor_url) == ("graphiti:read-1", "http://models:8000/v1")
        assert found.embedder_api_key is not None
        assert found.embedder_api_key.get_secret_value() == "key"
        assert found.extractor_api_key is not None
        assert found.graphrag_enabled
        assert (found.memory_keep_days, found.memory_keep_count, found.memory_summarise_after) == (30, 500, 40)
        assert found.metrics
        mounts = {each["target"]: each["source"] for each in services[name]["volumes"]}
        assert (mounts["/rules"], mounts["/ontologies"]) == ("/mine/workflows", "/mine/ontologies")
        if name in ("worker", "responder", "memory", "console"):
            assert found.bus == found.graph == "redis://:p%2Fw@falkordb:6379"
    mounts = {each["target"]: each["source"] for each in services["gateway"]["volumes"]}
    assert (mounts["/rules"], mounts["/ontologies"]) == ("/mine/workflows", "/mine/ontologies")
    for name in ("gateway", "archive"):
        assert settings_of(services[name], monkeypatch, tmp_path).bus == "redis://:p%2Fw@falkordb:6379"
    server = services["falkordb"]["environment"]
    assert server["REDIS_ARGS"].endswith(" --requirepass p/w")
    assert server["REDISCLI_AUTH"] == "p/w", "or the health check would be refused"


def test_without_variables_nothing_is_turned_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    services = compose()
    for name in READERS:
        found = settings_of(services[name], monkeypatch, tmp_path)
        assert (found.embedder, found.extractor, found.graphrag_enabled) == ("none", "none", False)
        assert (found.memory_keep_days, found.memory_keep_count, found.memory_summarise_after) == (0, 0, 0)
    assert "requirepass" not in services["falkordb"]["environment"]["REDIS_ARGS"]


def test_the_key_of_one_endpoint_is_not_sent_to_another() -> None:
    """A local embedder, beside a key of OpenAI for other programs."""
    services = compose(
        GRAPHWEFT_EMBEDDER="openai:m", GRAPHWEFT_EMBEDDER_URL="http://ollama:11434/v1", OPENAI_API_KEY="secret"
    )
    assert services["worker"]["environment"]["GRAPHWEFT_EMBEDDER_API_KEY"] == ""


def test_a_file_that_compose_refuses_is_seen(tmp_path: Path) -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    (tmp_path / "compose.yaml").write_text(text.replace("restart: unless-stopped", "restarts: always", 1), "utf-8")
    done = subprocess.run(
        [tool("compose"), str(tmp_path / "compose.yaml")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "restarts" in done.stderr


def test_prometheus_asks_each_role_by_its_name_and_reads_the_alerts(tmp_path: Path) -> None:
    services = compose()
    watched = {name for name, each in services.items() if each["environment"].get("GRAPHWEFT_METRICS") == "true"}
    config = yaml.safe_load((OBSERVABILITY / "prometheus.yaml").read_text("utf-8"))
    [job] = config["scrape_configs"]
    [names] = job["dns_sd_configs"]
    assert set(names["names"]) == watched == {name for name, each in services.items() if each.get("build")}
    addresses = {services[name]["environment"]["GRAPHWEFT_PROBE_ADDRESS"] for name in watched}
    assert addresses == {f"0.0.0.0:{names['port']}"}
    shutil.copy(OBSERVABILITY / "prometheus.yaml", tmp_path / "prometheus.yml")
    shutil.copytree(ROOT / "deploy/prometheus", tmp_path / "rules")
    done = subprocess.run(
        [tool("promtool"), "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = (ROOT / "deploy/prometheus/graphweft-alerts.yaml").read_text("utf-8").count("alert: ")
    assert f"{alerts} rules found" in done.stdout
    mounts = {each["target"]: each["source"] for each in services["prometheus"]["volumes"]}
    assert Path(mounts["/etc/prometheus/rules"]) == ROOT / "deploy/prometheus"
    mounts = {each["target"]: each["source"] for each in services["grafana"]["volumes"]}
    provider = yaml.safe_load((OBSERVABILITY / "grafana-dashboards.yaml").read_text("utf-8"))["providers"][0]
    assert Path(mounts[provider["options"]["path"]]) == ROOT / "deploy/grafana"
    sources = yaml.safe_load((OBSERVABILITY / "grafana-datasource.yaml").read_text("utf-8"))["datasources"]
    assert {each["url"].split("//")[1].split(":")[0] for each in sources} <= services.keys()


def test_traces_go_where_the_variable_says() -> None:
    services = compose(OTEL_EXPORTER_OTLP_ENDPOINT="http://jaeger:4318")
    ours = [each for each in services.values() if each.get("build")]
    assert {each["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] for each in ours} == {"http://jaeger:4318"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units_and_finds_them_well_closed(tmp_path: Path) -> None:
    for file in (ROOT / "deploy/systemd").iterdir():
        text = file.read_text("utf-8").replace("/opt/graphweft/bin/graphweft", shutil.which("true") or "/bin/true")
        (tmp_path / file.name).write_text(text, "utf-8")
    unit = tmp_path / "graphweft@mutation.service"
    shutil.copy(tmp_path / "graphweft@.service", unit)

    def said(*arguments: str) -> str:
        done = subprocess.run(
            ["systemd-analyze", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        return f"{done.returncode}\n{done.stdout}{done.stderr}"

    verified = said("verify", "./graphweft@mutation.service")
    assert not [line for line in verified.splitlines() if "graphweft" in line], verified
    broken = tmp_path / "graphweft@memory.service"
    broken.write_text(unit.read_text("utf-8").replace("RestartSec=5", "RestartSecond=5"), "utf-8")
    assert "RestartSecond" in said("verify", "./graphweft@memory.service")
    security = said("security", "--offline=true", "--threshold=25", "--json=short", "./graphweft@mutation.service")
    assert security.startswith("0\n"), security


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemctl is not installed")
def test_what_the_page_enables_starts_at_boot(tmp_path: Path) -> None:
    units = tmp_path / "etc/systemd/system"
    shutil.copytree(ROOT / "deploy/systemd", units)
    [enabled] = [
        line.partition("#")[0].split()[2:]
        for line in (ROOT / "docs/systemd.md").read_text("utf-8").splitlines()
        if line.startswith("systemctl enable ")
    ]
    subprocess.run(["systemctl", f"--root={tmp_path}", "enable", *enabled], check=True, capture_output=True, timeout=60)
    assert [each.name for each in (units / "multi-user.target.wants").iterdir()] == ["graphweft.target"]
    wanted = {each.name.removesuffix(".service") for each in (units / "graphweft.target.wants").iterdir()}
    assert wanted == {*enabled} - {"graphweft.target"}


def test_the_settings_of_the_units_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = settings_of({"environment": unit_environment("mutation")}, monkeypatch, tmp_path)
    assert found.bus == found.graph == "redis://127.0.0.1:6379"
    assert found.log_format == "json"
