"""Settings: where they come from, what is refused, and what a child process gets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from graphweft.settings import ClientSettings
from graphweft.transports.embedded import embedded_url
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.neo4j.url import NEO4J_SCHEMES, split_neo4j_url
from graphweft_workers.settings import service_variables as names_of_services
from graphweft_workers.settings.settings import CONFIG_FILE, Settings
from graphweft_workers.support.logs import set_up_logs
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport

ROOT = Path(__file__).parents[2]

# A value for every setting that is not its default.
GIVEN = {
    "data": "/somewhere/data",
    "bus_url": "kafka+ssl://bus.example:6390",
    "bus_user": "me",
    "bus_password": "secret-word",
    "bus_sasl": "PLAIN",
    "bus_ca": "/somewhere/ca.pem",
    "bus_cert": "/somewhere/me.pem",
    "bus_cert_key": "/somewhere/me.key",
    "graph_url": "rediss://user:secret@graph.example",
    "graph_user": "you",
    "graph_password": "secret-word",
    "graph_ca": "/somewhere/ca.pem",
    "rules": "/somewhere/rules",
    "graph_template": "tenant-{app_id}",
    "partitions": 7,
    "order": "chat",
    "worker_name": "w1",
    "batch_events": 10,
    "archive_url": "s3://bucket/log",
    "archive_every_s": 3.5,
    "effects_keep": 17,
    "archive_trim": True,
    "snapshot_events": 5,
    "lease_s": 2.5,
    "kafka_barrier_s": 7.5,
    "kafka_instance": "worker-1",
    "mutation_timeout_ms": 100,
    "query_timeout_ms": 200,
    "max_requests": 3,
    "context_off": "shop,bank",
    "context_cache_mb": 5,
    "context_index_mb": 6,
    "context_last_good_s": 1.5,
    "context_redact": False,
    "token_counter": "tiktoken:o200k_base",
    "index_name": "anyIndex",
    "vector_index_name": "vectors",
    "fulltext_index_name": "words",
    "graphrag_enabled": True,
    "graph_expand_max_hops": 1,
    "graph_expand_limit": 20,
    "graph_max_results": 10,
    "graphrag_query_timeout_ms": 300,
    "extractor": "graphiti:some-model",
    "extractor_url": "https://models.example:8443/v1",
    "extractor_api_key": "secret-key",
    "extractor_timeout_ms": 800,
    "extractor_attempts": 3,
    "extractor_at_once": 2,
    "embedder": "openai:some-model",
    "embedder_url": "https://models.example:8443/v1",
    "embedder_api_key": "secret-key",
    "embedder_timeout_ms": 700,
    "memory_summarise_after": 50,
    "memory_summarise_keep": 10,
    "summariser": "openai:some-model",
    "summariser_url": "https://models.example:8443/v1",
    "summariser_api_key": "secret-key",
    "summariser_timeout_ms": 900,
    "judge": "openai:some-model",
    "judge_url": "https://models.example:8443/v1",
    "judge_api_key": "secret-key",
    "judge_timeout_ms": 901,
    "memory_keep_days": 1.5,
    "memory_keep_count": 500,
    "signing_key": "acme-1:secret-of-more-than-thirty-two-letters",
    "signing_keys": "/somewhere/keys.yaml",
    "gateway_tokens": "/somewhere/tokens.yaml",
    "apps": "/somewhere/apps.yaml",
    "gateway_connections": 0,
    "console": False,
    "console_port": 1,
    "console_token": "a secret token of 32 characters or",
    "console_tokens": "/somewhere/console.yaml",
    "console_hosts": "console.example",
    "console_write": True,
    "audit_log": "-",
    "fsync": "everysec",
    "log_level": "debug",
    "loop_limit_ms": 20,
    "probe_address": "0.0.0.0:8080",
    "metrics": True,
    "metrics_apps": "shop,bank",
    "metrics_otlp_url": "https://collector.example:4318/v1/metrics",
    "metrics_otlp_headers": "authorization=Bearer secret-word",
    "metrics_every_s": 5.5,
    "log_format": "json",
}
CAPPED = ("graph_expand_max_hops", "graph_expand_limit", "graph_max_results")
"""Settings that graphrag caps: variables of other programs may give them."""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder, and no setting in the environment."""
    for name in list(os.environ):
        if name.upper().startswith(("GRAPHWEFT_", "NEO4J_", "AZURE_", "GRAPH_", "GRAPHRAG_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(settings: Settings) -> dict[str, Any]:
    values = settings.model_dump()
    for name, value in values.items():
        if isinstance(value, SecretStr):
            values[name] = value.get_secret_value()
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def refusal(**overrides: Any) -> str:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(**overrides)
    # Whoever prints the causes too must not see what stands in them.
    assert caught.value.__cause__ is None or "secret" not in str(caught.value.__cause__)
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("where", ["variable", "file of a variable", "settings file"])
def test_an_explicit_data_folder_does_not_silently_lose_to_another_bus(
    where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "redis://me:secret@bus.example"
    (folder / "url").write_text(url)
    if where == "settings file":
        (folder / CONFIG_FILE).write_text(f"bus_url: {url}\ngraph_url: {url}\n")
        named = "graphweft.yaml:1"
    else:
        named = "GRAPHWEFT_BUS_URL" if where == "variable" else "GRAPHWEFT_BUS_URL_FILE"
        variable = (
            ("GRAPHWEFT_BUS_URL", url) if where == "variable" else ("GRAPHWEFT_BUS_URL_FILE", str(folder / "url"))
        )
        monkeypatch.setenv(*variable)
        monkeypatch.setenv("GRAPHWEFT_GRAPH_URL", url)
    assert refusal(data=Path("mine")).startswith(
        f"--data 'mine' names the folder of an embedded server, and {named} another server"
    )
    monkeypatch.setenv("GRAPHWEFT_DATA", "mine")  # typer passes it on as an option
    assert Settings.load(data=Path("mine")).bus == url


def test_an_explicit_data_folder_loses_to_a_gateway_only_where_none_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_GATEWAY_URL", "http://127.0.0.1:8765")
    assert Settings.load(data=Path("mine")).embedded
    assert "GRAPHWEFT_GATEWAY_URL another server" in refusal(data=Path("mine"), through_gateway=True)
    assert Settings.load(through_gateway=True).embedded


def test_the_values_above_are_all_settings() -> None:
    assert GIVEN.keys() == Settings.model_fields.keys()
    defaults = shown(Settings.load())
    assert all(defaults[name] != value for name, value in GIVEN.items())


@pytest.mark.parametrize("value", ["1e300", "inf", "nan", "1" + "0" * 30])
@pytest.mark.parametrize("name", [name for name, each in GIVEN.items() if type(each) in (int, float)])
def test_a_number_that_is_absurd_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"GRAPHWEFT_{name.upper()}", value)
    if name in CAPPED and value.isdigit():
        assert Settings.load()
    else:
        assert f"GRAPHWEFT_{name.upper()}" in refusal()


def test_each_setting_can_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIVEN.items():
        monkeypatch.setenv(f"GRAPHWEFT_{name.upper()}", str(value))
    assert shown(Settings.load()) == GIVEN


def test_each_setting_can_stand_in_the_file(folder: Path) -> None:
    (folder / CONFIG_FILE).write_text("\n".join(f"{name}: {json.dumps(value)}" for name, value in GIVEN.items()))
    assert shown(Settings.load()) == GIVEN


def test_options_win_over_the_environment_and_that_over_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / CONFIG_FILE).write_text("partitions: 5\nbatch_events: 5\nmax_requests: 5\n")
    monkeypatch.setenv("GRAPHWEFT_BATCH_EVENTS", "6")
    monkeypatch.setenv("GRAPHWEFT_MAX_REQUESTS", "6")
    settings = Settings.load(max_requests=7, partitions=None)
    assert (settings.partitions, settings.batch_events, settings.max_requests) == (5, 6, 7)


def test_a_variable_in_lower_case_wins_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / CONFIG_FILE).write_text("partitions: 5\n")
    monkeypatch.setenv("graphweft_partitions", "6")
    assert Settings.load().partitions == 6
    monkeypatch.setenv("graphweft_partition", "6")
    assert "did you mean 'GRAPHWEFT_PARTITIONS'?" in refusal()


def test_an_empty_variable_counts_as_not_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GIVEN:
        monkeypatch.setenv(f"GRAPHWEFT_{name.upper()}", "")
    assert Settings.load() == Settings()
    (folder / CONFIG_FILE).write_text("partitions: 5\n")
    assert Settings.load().partitions == 5
    # The client reads the same variables and must come to the same bus.
    assert ClientSettings.from_environment().bus_url == Settings.load().bus


def test_the_client_takes_names_in_any_case_as_workers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("graphweft_bus_url", "redis://lower")
    monkeypatch.setenv("Graphweft_Context", "off")
    assert ClientSettings.from_environment().bus_url == Settings.load().bus == "redis://lower"
    for environment in (None, Settings.load().as_environment()):
        assert not ClientSettings.from_environment(environment).context
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", "redis://upper")
    assert ClientSettings.from_environment().bus_url == Settings.load().bus == "redis://upper"


def test_the_client_s_switches_are_no_fault_and_reach_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", "off")
    monkeypatch.setenv("GRAPHWEFT_CAPTURE", "off")
    in_children = ClientSettings.from_environment(Settings.load().as_environment())
    assert not in_children.context
    assert not in_children.capture
    assert ClientSettings.from_environment({}).context
    monkeypatch.setenv("GRAPHWEFT_CONTEX", "off")
    assert "did you mean 'GRAPHWEFT_CONTEXT'?" in refusal()


def test_a_named_file_is_read_instead_of_the_usual_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / CONFIG_FILE).write_text("partitions: 5\nworker_name: usual\n")
    (folder / "other.yaml").write_text("partitions: 6\n")
    monkeypatch.setenv("GRAPHWEFT_CONFIG", "other.yaml")
    settings = Settings.load()
    assert (settings.partitions, settings.worker_name) == (6, None)
    monkeypatch.setenv("GRAPHWEFT_CONFIG", "nowhere.yaml")
    assert "'nowhere.yaml'" in refusal()
    assert "nowhere2.yaml" in refusal(file=Path("nowhere2.yaml"))


def test_all_unknown_names_are_told_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / CONFIG_FILE).write_text("partitons: 5\nzzz: 1\n")
    monkeypatch.setenv("GRAPHWEFT_BATCH_EVENT", "5")
    told = refusal()
    assert "graphweft.yaml:1: unknown setting 'partitons'; did you mean 'partitions'?" in told
    assert "graphweft.yaml:2: unknown setting 'zzz'; known: apps, archive_every_s, archive_trim, " in told
    assert "unknown environment variable 'GRAPHWEFT_BATCH_EVENT'; did you mean 'GRAPHWEFT_BATCH_EVENTS'?" in told


NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_setting_that_is_a_number_takes_numbers_only(folder: Path, name: str, value: str) -> None:
    (folder / CONFIG_FILE).write_text(f"{name}: {value}\n")
    assert refusal().startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("010", "is read differently by YAML 1.1 and 1.2: write plain decimal digits, or quote it if it is text"),
        ("1:30", "is read differently by YAML 1.1 and 1.2: "), ("1_000", "is read differently by YAML 1.1 and 1.2: "),
        ("0b11", "is read differently by YAML 1.1 and 1.2: "), ("1e3", "is read differently by YAML 1.1 and 1.2: "),
        ("yes", "is a boolean to one YAML reader and text to the next: write true or false, or quote it"),
        ("off", "is a boolean to one YAML reader and text to the next: "), (".inf", "is a number that JSON and "),
        ("-.inf", "is a number that JSON and "), (".nan", "is a number that JSON and "),
        ("99999999999999999999", "does not fit into 64 bits"),
    ],
)  # fmt: skip
def test_a_value_that_yaml_readers_take_for_different_things_is_refused(folder: Path, value: str, said: str) -> None:
    """The value may be a password, so it is not shown."""
    (folder / CONFIG_FILE).write_text(f"memory_keep_days: {value}\n")
    assert refusal().startswith(f"graphweft.yaml:1:19: invalid YAML: a value {said}")


@pytest.mark.parametrize("value", ["it's \"x\": 1 ' is here", 'is " is "y"', "#"])
def test_no_fault_of_yaml_shows_a_part_of_a_value(folder: Path, value: str) -> None:
    (folder / CONFIG_FILE).write_text(f"bus_password: !secret {json.dumps('secret' + value)}\n")
    assert "secret" not in refusal()


def test_infinity_in_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_CONTEXT_LAST_GOOD_S", "inf")
    assert "GRAPHWEFT_CONTEXT_LAST_GOOD_S" in refusal()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", 0), ("partitions", 257), ("partitions", "many"), ("partitions", 1.5), ("partitions", None),
        ("batch_events", 0), ("mutation_timeout_ms", 0), ("query_timeout_ms", -1), ("max_requests", 0),
        ("fsync", "never"), ("log_level", "loud"), ("log_format", "xml"), ("data", 3), ("rules", ["a"]),
        ("data", "~nobody-of-that-name/x"), ("worker_name", [1]),
        ("graph_template", "one for all"), ("graph_template", "{app_id"), ("graph_template", "{app_id}}"),
        ("graph_template", "{app_id}{x}"), ("graph_template", "{app_id}{}"), ("graph_template", "{app_id}{app_id.x}"),
        ("graph_template", "{app_id}{app_id:.1}"), ("graph_template", "{app_id}{app_id!r}"),
        ("bus_url", ""), ("bus_url", "localhost:6379"), ("bus_url", "http://:secret@host"), ("bus_url", ["secret"]),
        ("bus_url", "redis://:secret/x@host"), ("bus_url", "redis://host:secret"), ("bus_url", "redis://host?secret=1"),
        ("bus_url", "redis://host?db=secret"), ("graph_url", "redis://host?protocol=9"),
        ("bus_url", "kafka://"), ("bus_url", "kafka://user:secret@host:1?x=1"), ("bus_url", "kafka://a:1,,b:2"),
        ("bus_url", "kafka://host:9092/topic"), ("bus_url", "kafka://host:secret"),
        ("bus_url", "kafka://::1:9092"), ("bus_url", "kafka://[secret]:9092"), ("bus_url", "bolt://host"),
        ("graph_url", "kafka://host:9092"), ("graph_url", "neo4j://"), ("graph_url", "neo4j://u:se/cret@host"),
        ("graph_url", "bolt://host:secret"), ("graph_url", "neo4j+x://host"), ("graph_url", "bolt://host:70000"),
        ("embedder_timeout_ms", 0), ("embedder", 3), ("embedder_url", ["secret"]), ("embedder_api_key", ["secret"]),
        ("embedder_url", ""), ("embedder_url", "models/v1"), ("embedder_url", "https://"), ("embedder_url", "ftp://h/v1"),
        ("embedder_url", "https://u:secret@h/v1"), ("embedder_url", "https://h/v1?key=secret"),
        ("embedder_url", "https://h/v1#secret"), ("embedder_url", "https://h:secret/v1"),
        ("embedder_url", "https://h/a secret"), ("embedder_url", "http://[secret/v1"),
        ("embedder_api_key", ""), ("embedder_api_key", "secret key"), ("embedder_api_key", "secret\nkey"),
        ("embedder_api_key", "secret\u00e9"),
        ("metrics_apps", "shop;bank"), ("metrics_otlp_url", "collector:4318"), ("metrics_otlp_headers", "secret"),
        ("metrics_otlp_headers", "a=secret\u00e9"), ("metrics_every_s", 0),
        ("graph_url", "neo4j://{app}.host"), ("graph_url", "neo4j://host/a/secret"), ("graph_url", "neo4j://ho st"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_place(folder: Path, name: str, value: Any) -> None:
    (folder / CONFIG_FILE).write_text(f"# One line.\n{name}: {json.dumps(value)}\n")
    told = refusal()
    assert told.startswith(f"{name}: ")
    assert told.endswith("(set by graphweft.yaml:2)")
    if isinstance(value, str) and value:
        (folder / CONFIG_FILE).write_text(f"{name}: null\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"GRAPHWEFT_{name.upper()}", value)
            assert refusal().endswith(f"(set by GRAPHWEFT_{name.upper()})")
        assert refusal(**{name: value}).endswith("(set by an option)")


def test_keys_that_yaml_takes_for_something_else_are_named(folder: Path) -> None:
    (folder / CONFIG_FILE).write_text("partitions: 5\n<<: {partitons: 5}\nyes: 1\n7: 2\n")
    told = refusal().splitlines()
    assert told[0].startswith("graphweft.yaml:2:1: invalid YAML: '<<' merges mappings")
    assert told[1].startswith(
        "graphweft.yaml:3:1: invalid YAML: the bare key 'yes' is not a string to every YAML reader"
    )
    assert told[2].startswith("graphweft.yaml:4:1: invalid YAML: the bare key '7' is not a string to every YAML reader")


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://u:p%2F@h:1/2", "rediss://h", "unix:///a/b c?db=1", "redis://[::1]:7"]
)
def test_redis_urls_of_all_kinds_are_taken(url: str) -> None:
    settings = Settings.load(bus_url=url)
    assert settings.bus == url
    assert not settings.embedded


@pytest.mark.parametrize(
    "url",
    ["kafka://h", "kafka://h:9092", "kafka://a.b:1,c-d:2", "kafka://h:9092/", "kafka+ssl://u:p@[::1]:9092,[fd00::2]"],
)
def test_kafka_urls_are_taken_for_the_bus(url: str) -> None:
    assert Settings.load(bus_url=url).bus == url


@pytest.mark.parametrize(
    "url",
    [
        "neo4j://h", "bolt://h:7687", "neo4j+s://u:p%2F%40@h.databases.neo4j.io", "bolt+ssc://[::1]:7687/db",
        "neo4j://{app_id}.graphs:7687", "neo4j://u@h/{app_id}?policy=eu", "neo4j+ssc://h/", "bolt+s://h",
    ],
)  # fmt: skip
def test_neo4j_urls_are_taken_for_the_graph(url: str) -> None:
    assert Settings.load(graph_url=url).graph == url


def test_neo4js_own_variables_name_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEO4J_USERNAME", "ann")
    monkeypatch.setenv("NEO4J_PASSWORD", "p:/@?#%x y")
    monkeypatch.setenv("NEO4J_DATABASE", "shop")
    assert Settings.load().graph_url is None
    monkeypatch.setenv("NEO4J_URI", "neo4j+s://1.databases.neo4j.io:7687?policy=eu")
    settings = Settings.load()
    assert settings.embedded
    address = split_neo4j_url(settings.graph)
    assert address.uri == "neo4j+s://1.databases.neo4j.io:7687?policy=eu"
    assert (address.user, address.password, address.database) == ("ann", "p:/@?#%x y", "shop")
    assert "%20y" not in repr(settings)
    assert settings.as_environment()["GRAPHWEFT_GRAPH_URL"] == settings.graph
    for name in ("NEO4J_USERNAME", "NEO4J_PASSWORD", "NEO4J_DATABASE"):
        monkeypatch.setenv(name, "")
    assert Settings.load().graph == "neo4j+s://1.databases.neo4j.io:7687?policy=eu"


def test_graphwefts_own_setting_wins_over_neo4js(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("NEO4J_URI", "neo4j://other")
    assert Settings.load(graph_url="redis://option").graph == "redis://option"
    (folder / CONFIG_FILE).write_text("graph_url: redis://file\n")
    assert Settings.load().graph == "redis://file"
    monkeypatch.setenv("GRAPHWEFT_GRAPH_URL", "redis://variable")
    assert Settings.load().graph == "redis://variable"


@pytest.mark.parametrize(
    "variables",
    [
        {"NEO4J_URI": "secret"},
        {"NEO4J_URI": "http://host"},
        {"NEO4J_URI": "neo4j://u:secret@host", "NEO4J_PASSWORD": "secret"},
        {"NEO4J_URI": "neo4j://host/one", "NEO4J_DATABASE": "secret"},
        {"NEO4J_URI": "neo4j://host", "NEO4J_DATABASE": "secret secret"},
    ],
)
def test_neo4j_variables_that_cannot_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "NEO4J_URI" in refusal()


AZURE = {
    "AZURE_AI_PROJECT_ENDPOINT": "https://res.services.ai.azure.com/api/projects/p",
    "AZURE_AI_EMBEDDING_NAME": "my-deployment",
    "AZURE_OPENAI_API_KEY": "secret-openai",
    "AZURE_AI_API_KEY": "secret-ai",
}


def embedding(settings: Settings) -> tuple[str, str | None, str | None]:
    key = settings.embedder_api_key
    return settings.embedder, settings.embedder_url, key and key.get_secret_value()


def test_azures_own_variables_say_which_embedder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert embedding(Settings.load(embedder="azure")) == ("azure", None, None)
    for name, value in AZURE.items():
        monkeypatch.setenv(name, value)
    # They are for this embedder only: a key of Azure goes to no other host.
    assert embedding(Settings.load()) == ("none", None, None)
    assert embedding(Settings.load(embedder="openai:azure")) == ("openai:azure", None, None)
    monkeypatch.setenv("graphweft_embedder", "azure")
    endpoint = AZURE["AZURE_AI_PROJECT_ENDPOINT"]
    settings = Settings.load()
    assert embedding(settings) == ("azure:my-deployment", endpoint, "secret-ai")
    assert "secret" not in repr(settings) + settings.model_dump_json()
    monkeypatch.setenv("AZURE_AI_API_KEY", "")
    assert embedding(Settings.load(embedder="azure:other")) == ("azure:other", endpoint, "secret-openai")
    own = Settings.load(embedder="azure", embedder_url="https://h", embedder_api_key="mine")
    assert embedding(own) == ("azure:my-deployment", "https://h", "mine")
    assert embedding(in_child(settings.as_environment(), folder, monkeypatch)) == embedding(settings)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AZURE_AI_PROJECT_ENDPOINT", "secret"),
        ("AZURE_AI_PROJECT_ENDPOINT", "https://u:secret@h"),
        ("AZURE_AI_API_KEY", "secret key"),
        ("AZURE_OPENAI_API_KEY", "secret\tkey"),
    ],
)
def test_azure_variables_that_cannot_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(embedder="azure").endswith(f"(set by {variable})")
    Settings.load()


def test_a_key_from_a_file_loses_its_line_end() -> None:
    assert embedding(Settings.load(embedder_api_key="secret-key\n"))[2] == "secret-key"


def test_the_url_chooses_the_driver(tmp_path: Path) -> None:
    def kinds(**given: Any) -> tuple[str, str, str]:
        settings = Settings.load(data=tmp_path, **given)
        made = make_bus(settings, archived=False).log, make_graph(settings), make_transport(settings)
        return tuple(type(service).__name__ for service in made)  # type: ignore[return-value]

    assert kinds() == ("RedisEventLog", "FalkorDBStore", "RedisTransport")
    for scheme in NEO4J_SCHEMES:
        assert kinds(graph_url=f"{scheme}://h")[1] == "Neo4jStore"
    assert kinds(bus_url="kafka://h:1") == ("KafkaEventLog", "FalkorDBStore", "KafkaTransport")


@pytest.mark.parametrize(
    ("module", "given", "extra"),
    [
        ("neo4j", {"graph_url": "neo4j://h"}, "pip install 'graphweft[neo4j]'"),
        ("aiokafka", {"bus_url": "kafka://h:1"}, "pip install 'graphweft[kafka]'"),
    ],
)
def test_a_driver_that_is_not_installed_names_its_extra(
    module: str, given: dict[str, str], extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == module:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    ours = ("graphweft_workers.drivers.neo4j", "graphweft_workers.drivers.kafka", "graphweft.transports.kafka")
    for name in list(sys.modules):
        if name.partition(".")[0] == module or name.startswith(ours):
            monkeypatch.delitem(sys.modules, name)
    settings = Settings.load(data=tmp_path, **given)
    for make in (make_graph,) if "graph_url" in given else (make_bus, make_transport):
        with pytest.raises(InvalidSettings) as caught:
            make(settings)
        assert extra in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"bus_url: 'redis://:secret@h\npartitions: 1\n", "graphweft.yaml:3:1: "),
        (b"a: [secret\n", "graphweft.yaml:2:1: "),
        (b"\tpartitions: 1\n", "graphweft.yaml:1:1: "),
        (b"- partitions\n", "name: value"),
        (b"partitions\n", "name: value"),
        (
            b"partitions: 1\npartitions: 2\n",
            "graphweft.yaml:2:1: invalid YAML: the key 'partitions' is used at line 1 ",
        ),
        (
            b"bus_url: redis: //secret\n",
            ":1:15: invalid YAML: mapping values are not allowed here: quote a text that holds ': '",
        ),
        (b"\xff\xfe\xff", "invalid YAML"),
        (b"worker_name: \x07\n", "invalid YAML"),
        (b"\tworker_name: a\n", ":1:1: invalid YAML: found a tab: indent with spaces"),
        (b"? [a]\n: 1\n", "invalid YAML"),
        (b"bus_url: *secret\n", "graphweft.yaml:1:10: invalid YAML: found undefined alias a value"),
        (b"bus_url: !secret\n", "graphweft.yaml:1:10: invalid YAML: the tag a value: put values in quotes"),
        (b"partitions: " + b"[" * 5_000, "levels: use fewer levels"),
        (b"worker_name: !!python/object:os.system x\n", "graphweft.yaml:1:14: "),
    ],
)
def test_a_file_that_is_no_settings_file_is_refused(folder: Path, content: bytes, told: str) -> None:
    (folder / CONFIG_FILE).write_bytes(content)
    error = refusal()
    assert told in error
    assert "secret" not in error


def test_the_case_of_a_variable_makes_no_difference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("graphweft_config", "nowhere.yaml")
    assert "the settings file 'nowhere.yaml' does not exist" in refusal()
    monkeypatch.delenv("graphweft_config")
    monkeypatch.setenv("graphweft_bus_url", "redis://127.0.0.1:1")
    monkeypatch.setenv("GRAPHWEFT_BUS_URL_FILE", str(folder / "url"))
    assert "GRAPHWEFT_BUS_URL and GRAPHWEFT_BUS_URL_FILE are both set" in refusal()
    monkeypatch.delenv("GRAPHWEFT_BUS_URL_FILE")
    monkeypatch.setenv("Graphweft_Partitions", "3")
    monkeypatch.setenv("GRAPHWEFT_PARTITIONS", "5")
    monkeypatch.setenv("graphweft_partitions", "4")
    assert Settings.load().partitions == 5


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"---\n", b"\xef\xbb\xbfpartitions: 64\n"])
def test_a_file_may_say_nothing_new(folder: Path, content: bytes) -> None:
    (folder / CONFIG_FILE).write_bytes(content)
    assert shown(Settings.load()) == shown(Settings())


def test_the_home_folder_is_found(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("HOME", str(folder))
    settings = Settings.load(data=Path("~/data"), rules=Path("~/rules"))
    assert (settings.data, settings.rules) == (folder / "data", folder / "rules")


def test_without_urls_the_embedded_server_is_meant(folder: Path) -> None:
    settings = Settings.load(data=folder)
    assert settings.embedded
    assert settings.bus == settings.graph == embedded_url(folder)
    assert Settings.load(data=folder, graph_url="redis://h").bus == embedded_url(folder)
    assert Settings.load(data=folder, bus_url="redis://h").graph == embedded_url(folder)


def test_a_password_is_not_shown() -> None:
    settings = Settings.load(bus_url="redis://:secret@host", graph_url="redis://:secret@host")
    assert "secret" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert "secret" in settings.bus


def in_child(environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in list(os.environ):
        if name.startswith("GRAPHWEFT_"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        if name.startswith("GRAPHWEFT_"):
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return Settings.load()


def test_a_child_gets_the_same_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_PARTITIONS", "5")
    monkeypatch.setenv("OTHER", "stays")
    settings = Settings.load(**(GIVEN | {"data": Path("relative"), "rules": Path("rules")}))
    environment = settings.as_environment()
    assert environment["OTHER"] == "stays"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    found = shown(in_child(environment, elsewhere, monkeypatch))
    assert found == GIVEN | {"data": str(folder / "relative"), "rules": str(folder / "rules")}


def test_a_child_reads_the_same_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / CONFIG_FILE).write_text("worker_name: not meant\n")
    (folder / "other.yaml").write_text("partitions: 6\n")
    monkeypatch.setenv("GRAPHWEFT_CONFIG", "other.yaml")
    settings = Settings.load()
    assert in_child(settings.as_environment(), folder, monkeypatch) == settings


def test_the_page_names_every_setting() -> None:
    page = (ROOT / "docs/commands.md").read_text("utf-8")
    for name, field in Settings.model_fields.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `GRAPHWEFT_{name.upper()}` | `{name}` |")]
        if field.default is not None:
            default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert row.split(" | ")[2].strip("`") == default
    assert "`GRAPHWEFT_CONFIG`" in page


@pytest.mark.parametrize(
    ("variable", "field", "wrong"),
    [
        ("GRAPHRAG_ENABLED", "graphrag_enabled", "perhaps"),
        ("GRAPH_RAG_ENABLED", "graphrag_enabled", "perhaps"),
        ("GRAPH_EXPAND_MAX_HOPS", "graph_expand_max_hops", "-1"),
        ("GRAPH_EXPAND_LIMIT", "graph_expand_limit", "0"),
        ("GRAPH_MAX_RESULTS", "graph_max_results", "many"),
        ("NEO4J_QUERY_TIMEOUT_MS", "graphrag_query_timeout_ms", "0"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_variables_of_the_hybrid_contract(
    monkeypatch: pytest.MonkeyPatch, variable: str, field: str, wrong: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert getattr(Settings.load(), field) == 1
    monkeypatch.setenv(f"GRAPHWEFT_{field.upper()}", "1" if field != "graphrag_enabled" else "false")
    monkeypatch.setenv(variable, "3" if field != "graphrag_enabled" else "true")
    assert int(getattr(Settings.load(), field)) == (field != "graphrag_enabled")
    monkeypatch.delenv(f"GRAPHWEFT_{field.upper()}")
    monkeypatch.setenv(variable, wrong)
    with pytest.raises(InvalidSettings, match=rf"{field}: .*set by {variable}"):
        Settings.load()


@pytest.mark.usefixtures("folder")
def test_a_switch_that_is_neither_on_nor_off_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRAG_ENABLED", "banana")
    with pytest.raises(InvalidSettings, match="write true, 1, yes or on, or false, 0, no or off") as raised:
        Settings.load()
    assert "banana" not in str(raised.value)
    for value, on in {"true": True, "1": True, "yes": True, "on": True, "0": False, "no": False, "off": False}.items():
        monkeypatch.setenv("GRAPHRAG_ENABLED", value)
        assert Settings.load().graphrag_enabled is on


@pytest.mark.usefixtures("folder")
def test_the_older_name_counts_where_the_newer_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Settings.load().graphrag_enabled
    monkeypatch.setenv("GRAPH_RAG_ENABLED", "true")
    assert Settings.load().graphrag_enabled
    monkeypatch.setenv("GRAPHRAG_ENABLED", "false")
    assert not Settings.load().graphrag_enabled


@pytest.mark.usefixtures("folder")
def test_a_graphiti_servers_own_variables_say_which_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODEL_NAME": "m", "OPENAI_BASE_URL": "http://x:1/v1", "OPENAI_API_KEY": "k"}.items():
        monkeypatch.setenv(name, value)
    assert (Settings.load().extractor, Settings.load().extractor_url) == ("none", None)
    settings = Settings.load(extractor="graphiti")
    assert (settings.extractor, settings.extractor_url) == ("graphiti:m", "http://x:1/v1")
    assert settings.extractor_api_key == SecretStr("k")
    settings = Settings.load(extractor="graphiti:other", extractor_url="http://y/v1")
    assert (settings.extractor, settings.extractor_url) == ("graphiti:other", "http://y/v1")
    monkeypatch.setenv("OPENAI_BASE_URL", "nowhere")
    with pytest.raises(InvalidSettings, match="OPENAI_BASE_URL"):
        Settings.load(extractor="graphiti")


def test_logs_are_json_lines_from_their_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("warning", "json")
    logger = structlog.stdlib.get_logger("graphweft.test")
    logger.info("not_shown")
    logger.warning("shown", app_id="a", count=3)
    logging.getLogger("graphweft.client").error("of the standard %s", "library")
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = (json.loads(line) for line in printed.err.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "shown", "level": "warning", "app_id": "a", "count": 3}
    assert (second["event"], second["level"]) == ("of the standard library", "error")


def test_a_line_below_the_level_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def merged(logger: object, method: str, event: dict[str, object]) -> dict[str, object]:
        made.append(method)
        return event

    monkeypatch.setattr(structlog.contextvars, "merge_contextvars", merged)
    set_up_logs("warning", "json")
    logger = structlog.stdlib.get_logger("graphweft.test")
    logger.debug("skipped")
    logger.info("skipped")
    logger.warning("shown")
    assert made == ["warning"]


def test_lines_of_libraries_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # a second set-up replaces the first one
        set_up_logs("warning", "json")
    logging.getLogger("neo4j.io").error("[#CA26]  _: <CONNECTION> error")
    logging.getLogger("aiokafka").warning("no broker")
    logging.getLogger("aiokafka").info("not shown")
    loop = asyncio.new_event_loop()
    loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": ValueError("x")})
    loop.close()
    logging.getLogger().warning("of nobody")
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in found] == ["error", "warning", "error", "warning"]
    assert "ValueError: x" in found[2]["exception"]


@pytest.mark.parametrize(("variable", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_logs_on_a_terminal_have_colours_unless_no_color_is_set(variable: dict[str, str], has_colours: bool) -> None:
    ours, theirs = pty.openpty()
    set_up = "import graphweft_workers.support.logs as logs; logs.set_up_logs('info', 'console')"
    code = f"{set_up}; logs.structlog.get_logger('graphweft').info(1)"
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **variable}
    subprocess.run([sys.executable, "-c", code], env=environment, stderr=theirs, check=True)
    os.close(theirs)
    assert (b"\x1b[" in os.read(ours, 10_000)) is has_colours
    os.close(ours)


@pytest.mark.parametrize("style", ["console", "json"])
def test_an_exception_is_logged_with_its_trace(style: Any, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", style)
    try:
        raise ValueError("the cause")
    except ValueError:
        structlog.stdlib.get_logger("graphweft.trace").exception("failed")
    printed = capsys.readouterr().err
    assert "failed" in printed
    assert "ValueError: the cause" in printed
    assert "\x1b" not in printed  # no colours where nobody looks


class _Named:
    def __repr__(self) -> str:
        return "named \x1b[2J"


@pytest.mark.parametrize("style", ["console", "json"])
def test_no_log_entry_controls_a_terminal(style: Any, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", style)
    hostile = "x\x1b[2K\x1b[1Aevil\u202e\u2028\x9b\r\x85\ud800"
    own, standard = structlog.stdlib.get_logger("graphweft.test"), logging.getLogger("some.library")
    own.info("spans_ignored", library=hostile, both=f"a b {hostile}", many=[hostile], named=_Named(), **{hostile: 1})
    own.info(f"event {hostile}\nforged line")
    standard.warning("of a library: %s", f"{hostile}\nforged line")
    for logger in (own, standard):
        try:
            raise ValueError(hostile)
        except ValueError:
            logger.exception(hostile)
    printed = capsys.readouterr().err
    assert [char for char in printed if not char.isprintable() and char != "\n"] == []
    assert not [line for line in printed.splitlines() if line.startswith("forged line")]
    assert "x\\u001b[2K\\u001b[1Aevil\\u202e" in printed  # it can still be read


@pytest.mark.parametrize("style", ["console", "json"])
@pytest.mark.parametrize(
    "logger",
    [structlog.stdlib.get_logger("graphweft.locals"), logging.getLogger("graphweft.client")],
    ids=["own", "standard"],
)
def test_a_trace_shows_no_local_variables(style: Any, logger: Any, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", style)
    secret = "a private " + "value"
    try:
        raise ValueError("the cause")
    except ValueError:
        logger.exception("failed")
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "ValueError: the cause" in printed
    assert secret not in printed
    assert "locals" not in printed.replace("graphweft.locals", "")
    if style == "json":
        assert "ValueError: the cause" in json.loads(printed)["exception"]


@pytest.mark.parametrize(
    ("given", "apps"), [(None, set()), ("*", {"*"}), ("shop", {"shop"}), ("shop , b_2-x", {"shop", "b_2-x"})]
)
def test_apps_without_context_are_a_list(given: str | None, apps: set[str]) -> None:
    assert Settings.load(context_off=given).context_off_apps == apps


@pytest.mark.parametrize("given", ["*,shop", "a b", "shop,", "ä"])
def test_what_is_no_list_of_apps_is_refused(given: str) -> None:
    assert "context_off" in refusal(context_off=given)


@pytest.mark.parametrize("name", ["index_name", "vector_index_name", "fulltext_index_name"])
def test_indexes_have_the_names_that_neo4js_variables_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(Settings.load(), name) == _DEFAULT_NAMES[name]
    monkeypatch.setenv(f"NEO4J_{name.upper()}", "theirs")
    assert getattr(Settings.load(), name) == "theirs"
    monkeypatch.setenv(f"GRAPHWEFT_{name.upper()}", "ours")
    assert getattr(Settings.load(), name) == "ours"


_DEFAULT_NAMES = {"index_name": None, "vector_index_name": "chunkEmbeddings", "fulltext_index_name": "search_chunks"}


def service_variables(prefix: str, *, ip: str = "10.0.0.1") -> dict[str, str]:
    """What Kubernetes gives each container for a service of three ports."""
    host = f"[{ip}]" if ":" in ip else ip
    found = {f"{prefix}_SERVICE_HOST": ip, f"{prefix}_SERVICE_PORT": "8765", f"{prefix}_SERVICE_PORT_HTTP": "8765",
             f"{prefix}_SERVICE_PORT_URL_2": "53", f"{prefix}_PORT": f"tcp://{host}:8765"}  # fmt: skip
    for port, protocol in (("8765", "tcp"), ("53", "udp"), ("9000", "sctp")):
        start = f"{prefix}_PORT_{port}_{protocol.upper()}"
        found |= {start: f"{protocol}://{host}:{port}", f"{start}_PROTO": protocol, f"{start}_PORT": port,
                  f"{start}_ADDR": ip}  # fmt: skip
    return found


def link_variables(prefix: str, alias: str) -> dict[str, str]:
    """What a link of Docker adds: a range of ports, the name, and the other container's environment."""
    start, end = f"{prefix}_PORT_8000_TCP", f"{prefix}_PORT_8009_TCP"
    return {
        f"{start}_START": "tcp://172.17.0.5:8000", f"{end}_END": "tcp://172.17.0.5:8009",
        f"{start}_PORT_START": "8000", f"{end}_PORT_END": "8009",
        f"{prefix}_NAME": f"/consumer/{alias}", f"{prefix}_ENV_REDIS_ARGS": "--requirepass x",
    }  # fmt: skip


SERVICES = {"graphweft": "GRAPHWEFT", "graphweft-redis": "GRAPHWEFT_REDIS", "graphweft-gateway": "GRAPHWEFT_GATEWAY",
            "graphweft-bus": "GRAPHWEFT_BUS", "graphweft-worker": "GRAPHWEFT_WORKER"}  # fmt: skip
INJECTED = [
    *(item for prefix in SERVICES.values() for item in service_variables(prefix).items()),
    *service_variables("GRAPHWEFT_V6", ip="fd00::1:2").items(),
]


@pytest.mark.parametrize(("name", "value"), INJECTED, ids=lambda value: value)
def test_variables_of_a_service_are_passed_by(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    unknown: list[str] = []
    assert Settings.load() == Settings.load(unknown=unknown) == Settings()
    assert unknown == []
    assert name not in Settings.load().as_environment()


@pytest.mark.parametrize(("alias", "prefix"), SERVICES.items())
def test_variables_of_a_link_are_passed_by(
    monkeypatch: pytest.MonkeyPatch, folder: Path, alias: str, prefix: str
) -> None:
    for name, value in (service_variables(prefix) | link_variables(prefix, alias)).items():
        monkeypatch.setenv(name, value)
    assert Settings.load().worker_name is None
    assert Settings.load(worker_name="given").worker_name == "given"
    (folder / CONFIG_FILE).write_text("worker_name: mine\n")
    assert Settings.load().worker_name == "mine"


@pytest.mark.parametrize("value", ["worker-1", "/worker", "/consumer/graphweft-workers", "graphweft-worker", "x/y"])
def test_a_setting_that_is_called_like_a_service_is_read(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name, injected in service_variables("GRAPHWEFT_WORKER").items():
        monkeypatch.setenv(name, injected)
    monkeypatch.setenv("GRAPHWEFT_WORKER_NAME", value)
    assert Settings.load().worker_name == value


def test_no_setting_is_called_like_a_service_variable() -> None:
    """A new setting such as ``gateway_port`` is read: only values that a service's variable has are passed by."""
    given = {f"GRAPHWEFT_{name.upper()}": str(value) for name, value in GIVEN.items()}
    assert names_of_services.service_variables(given) == set()
    ports = {"GRAPHWEFT_GATEWAY_PORT": "8765", "GRAPHWEFT_METRICS_PORT": "9090", "GRAPHWEFT_PORT": "1"}
    assert names_of_services.service_variables(ports) == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAPHWEFT_PORT", "8765"), ("GRAPHWEFT_GATEWAY_PORT", "8765"), ("GRAPHWEFT_SERVICE_HOST", "a name"),
        ("GRAPHWEFT_SERVICE_PORT", "http"), ("GRAPHWEFT_PORT_8765_TCP", "8765"), ("GRAPHWEFT_PORT_8765", "tcp://a:1"),
        ("GRAPHWEFT_PORT_8765_TCP_PROTO", "http"), ("GRAPHWEFT_ENV_X", "1"), ("GRAPHWEFT_BUS_NAME", "/x/other"),
        ("graphweft_port", "tcp://10.0.0.1:1"), ("GRAPHWEFT_BUS_ENV_X", "1"), ("GRAPHWEFT_REDIS_URL", "tcp://a:1"),
    ],
)  # fmt: skip
def test_what_no_service_has_is_a_mistake(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert repr(name.upper()) in refusal()


def test_a_role_that_is_to_run_is_warned_of_variables_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("GRAPHWEFT_PARTITONS", "5")
    monkeypatch.setenv("GRAPHWEFT_ZZZ", "secret")
    unknown: list[str] = []
    assert Settings.load(unknown=unknown).partitions == 64
    first, second = sorted(unknown)
    assert first.endswith(
        "unknown environment variable 'GRAPHWEFT_PARTITONS' is ignored; did you mean 'GRAPHWEFT_PARTITIONS'?"
    )
    assert second.endswith("unknown environment variable 'GRAPHWEFT_ZZZ' is ignored")
    (folder / CONFIG_FILE).write_text("partitons: 5\n")
    with pytest.raises(InvalidSettings, match="unknown setting 'partitons'"):
        Settings.load(unknown=[])


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "localhost:0", "[::]:65535", "pod-1.svc:1"])
def test_an_address_of_probes_is_a_host_and_a_port(address: str) -> None:
    assert Settings.load(probe_address=address).probe_address == address


@pytest.mark.parametrize("address", ["8080", ":8080", "host:", "host:65536", "http://host:80", "a b:1", "::1:80"])
def test_another_address_of_probes_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(InvalidSettings, match=r"probe_address: invalid address .* as 0\.0\.0\.0:8080"):
        Settings.load(probe_address=address)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("judge", "none, or openai:MODEL, as openai:gpt-5-mini"),
        ("summariser", "extractive, or openai:MODEL, as openai:gpt-5-mini"),
        ("extractor", "none, graphiti, or graphiti:MODEL, as graphiti:gpt-5-mini"),
    ],
)
def test_a_model_without_its_kind_is_told_what_to_write(monkeypatch: pytest.MonkeyPatch, name: str, forms: str) -> None:
    monkeypatch.setenv(f"GRAPHWEFT_{name.upper()}", "gpt-5-mini")
    with pytest.raises(InvalidSettings) as raised:
        Settings.load(cwd=False)
    assert str(raised.value) == f"{name}: invalid value: write {forms} (set by GRAPHWEFT_{name.upper()})"


def test_no_setting_is_refused_with_a_regular_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [name for name, field in Settings.model_fields.items() if any(map(_pattern, field.metadata))]
    assert "judge" in patterns
    for name in patterns:
        monkeypatch.setenv(f"GRAPHWEFT_{name.upper()}", "?!")
        with pytest.raises(InvalidSettings, match=f"{name}: invalid value: write "):
            Settings.load(cwd=False)
        monkeypatch.delenv(f"GRAPHWEFT_{name.upper()}")


def _pattern(metadata: Any) -> str | None:
    return getattr(metadata, "pattern", None)
