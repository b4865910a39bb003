"""The Helm chart: Kubernetes, KEDA and the Prometheus operator accept what helm renders; wrong values are refused."""

from __future__ import annotations

import copy
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.services.charts import (
    CHART,
    EXAMPLES,
    ROOT,
    ChartError,
    deployment,
    example,
    helm,
    of_kind,
    render,
    variables,
)
from tests.services.go_tools import schemas

from graphweft_contracts import channels

MINIMAL: dict[str, Any] = {
    "image": {"repository": "graphweft", "tag": "1.2.3"},
    "bus": {"url": "redis://redis:6379"},
    "graph": {"url": "redis://falkordb:6379"},
}
_OWN_SERVERS = {"bus": {"url": ""}, "graph": {"url": ""}}


def _validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema)


def faults(item: dict[str, Any]) -> list[str]:
    known = schemas()
    found = _validator(known[f"{item['apiVersion']}/{item['kind']}"]).iter_errors(item)
    return [f"{item['kind']} {item['metadata']['name']}: {each.json_path}: {each.message[:300]}" for each in found]


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_object_is_what_its_kind_admits(name: str) -> None:
    objects = example(name)
    assert [fault for each in objects for fault in faults(each)] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names) > 5
    assert all(len(name) <= 63 for _, name in names)


@pytest.mark.parametrize("where", [("spec", "replica"), ("spec", "template", "spec", "containers", 0, "arguments")])
def test_the_schemas_see_an_unknown_field(where: tuple[Any, ...]) -> None:
    item = copy.deepcopy(deployment(example("trial"), "worker"))
    inner: Any = item
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = 1
    [fault] = faults(item)
    assert where[-1] in fault


def test_the_schemas_see_a_wrong_field_of_each_resource_of_others() -> None:
    objects = [*example("redis-falkordb"), *example("kafka-neo4j")]
    for kind, field in (("ScaledObject", "minReplicas"), ("ServiceMonitor", "endpoint"), ("PrometheusRule", "rules")):
        for item in of_kind(objects, kind).values():
            broken = copy.deepcopy(item)
            broken["spec"][field] = 1
            assert any(field in fault for fault in faults(broken)), kind


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_pod_runs_with_few_rights(name: str) -> None:
    objects = example(name)
    owners = [*of_kind(objects, "Deployment").values(), *of_kind(objects, "Job").values()]
    assert len(owners) >= 3
    for owner in owners:
        pod = owner["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001, "the user of the image"
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], "heartbeats are written there"
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["volumes"]}
        if owner["kind"] == "Deployment":
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
            assert len(pod["topologySpreadConstraints"]) == 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_names_pods_or_deployments_finds_them(name: str) -> None:
    objects = example(name)
    deployments = of_kind(objects, "Deployment")
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in deployments.values()]
    pods += [
        each["spec"]["template"]["metadata"]["labels"]
        for kind in ("StatefulSet", "Job")
        for each in of_kind(objects, kind).values()
    ]

    def selected(labels: dict[str, str]) -> int:
        return sum(labels.items() <= each.items() for each in pods)

    for each in deployments.values():
        assert selected(each["spec"]["selector"]["matchLabels"]) == 1
    for kind, where in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for each in of_kind(objects, kind).values():
            assert selected(each["spec"][where]["matchLabels"]) == 1, each["metadata"]["name"]
    for name_of_service, service in of_kind(objects, "Service").items():
        expected = len(pods) if name_of_service.endswith("-metrics") else 1
        assert selected(service["spec"]["selector"]) == expected
    for kind in ("ScaledObject", "HorizontalPodAutoscaler"):
        for each in of_kind(objects, kind).values():
            target = deployments[each["spec"]["scaleTargetRef"]["name"]]
            assert "replicas" not in target["spec"], "an upgrade would set it back"
    for monitor in of_kind(objects, "ServiceMonitor").values():
        matching = [
            service for service in of_kind(objects, "Service").values()
            if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        ]  # fmt: skip
        assert [port["name"] for service in matching for port in service["spec"]["ports"]] == [
            monitor["spec"]["endpoints"][0]["port"]
        ]


def test_budgets_are_for_roles_with_several_pods() -> None:
    assert of_kind(example("trial"), "PodDisruptionBudget") == {}, "one pod, which a budget would keep on its node"
    assert {*of_kind(example("redis-falkordb"), "PodDisruptionBudget")} == {
        "gw-graphweft-worker", "gw-graphweft-responder", "gw-graphweft-gateway",
    }  # fmt: skip


def test_no_password_is_in_an_object_and_each_secret_is_mounted() -> None:
    for name, named in (
        ("redis-falkordb", {"redis", "falkordb", "ca", "gateway"}),
        ("kafka-neo4j", {"kafka", "neo4j", "models", "signing", "gateway", "console"}),
    ):
        objects = example(name)
        assert of_kind(objects, "Secret") == {}
        owners = [*of_kind(objects, "Deployment").values(), *of_kind(objects, "Job").values()]
        mounted = {
            volume["secret"]["secretName"].removeprefix("graphweft-")
            for owner in owners for volume in owner["spec"]["template"]["spec"]["volumes"] if "secret" in volume
        }  # fmt: skip
        assert mounted == named
        for owner in owners:
            [container] = owner["spec"]["template"]["spec"]["containers"]
            folders = [each["mountPath"] for each in container["volumeMounts"]]
            for variable, value in variables(owner).items():
                if value.startswith(("/etc/", "/archive", "/rules")):
                    assert any(f"{value}/".startswith(f"{folder}/") for folder in folders), f"{variable}={value}"


def test_a_gateway_serves_mcp_if_it_is_asked_to() -> None:
    for name, serves in (("redis-falkordb", True), ("kafka-neo4j", False)):
        [container] = deployment(example(name), "gateway")["spec"]["template"]["spec"]["containers"]
        assert ("--mcp" in container["args"]) is serves


def test_roles_have_what_they_need_and_no_more() -> None:
    objects = example("kafka-neo4j")
    gateway, archive = (variables(deployment(objects, role)) for role in ("gateway", "archive"))
    assert not {"GRAPHWEFT_GRAPH_URL", "GRAPHWEFT_GRAPH_PASSWORD_FILE", "GRAPHWEFT_SIGNING_KEYS"} & gateway.keys()
    assert gateway["GRAPHWEFT_SIGNING_KEY_FILE"] == "/etc/graphweft/signing-key/signing-key"
    assert "GRAPHWEFT_GRAPH_URL" not in archive
    for role in ("worker", "responder", "memory", "console", "archive"):
        assert variables(deployment(objects, role))["GRAPHWEFT_ARCHIVE_URL"] == "s3://company-graphweft/prod"
    assert variables(deployment(objects, "worker"))["GRAPHWEFT_BATCH_EVENTS"] == "2000"
    assert "GRAPHWEFT_BATCH_EVENTS" not in variables(deployment(objects, "responder"))


def test_settings_keep_their_values(tmp_path: Path) -> None:
    objects = render(
        tmp_path, MINIMAL,
        {
            "settings": {"context_redact": True, "memory_keep_count": 1_000_000, "lease_s": 2.5, "log_level": "debug"},
            "responder": {"settings": {"context_redact": False}},
        },
    )  # fmt: skip
    worker, responder = (variables(deployment(objects, role)) for role in ("worker", "responder"))
    assert (worker["GRAPHWEFT_CONTEXT_REDACT"], responder["GRAPHWEFT_CONTEXT_REDACT"]) == ("true", "false")
    assert worker["GRAPHWEFT_MEMORY_KEEP_COUNT"] == "1000000", "not 1e+06"
    assert (worker["GRAPHWEFT_LEASE_S"], worker["GRAPHWEFT_LOG_LEVEL"]) == ("2.5", "debug")


def test_the_settings_of_the_chart_are_those_of_the_roles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from graphweft_workers.settings.settings import Settings

    monkeypatch.chdir(tmp_path)
    names = {
        name.removeprefix("GRAPHWEFT_").removesuffix("_FILE").lower()
        for each in EXAMPLES
        for owner in of_kind(example(each), "Deployment").values()
        for name in variables(owner)
        if name.startswith("GRAPHWEFT_")
    }
    assert names - Settings.model_fields.keys() == set()


def test_rules_are_mounted_by_their_paths_and_pushed_by_a_job(tmp_path: Path) -> None:
    files = {"Support/graph_injection.yaml": "a: 'x'\n", "Support/notes.md": "\u00e9 {{ no template }}\n"}
    objects = render(tmp_path, MINIMAL, {"rules": {"files": files}})
    data = of_kind(objects, "ConfigMap")["gw-graphweft-rules"]["data"]
    [job] = of_kind(objects, "Job").values()
    for owner in (deployment(objects, "worker"), deployment(objects, "responder"), job):
        [container] = owner["spec"]["template"]["spec"]["containers"]
        mounts = [each for each in container["volumeMounts"] if each["name"] == "rules"]
        assert {each["mountPath"]: data[each["subPath"]] for each in mounts} == {
            f"/rules/{path}": text for path, text in files.items()
        }
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["rules", "push", "/rules"]
    assert variables(job) == variables(deployment(objects, "worker"))


def test_a_change_of_ontologies_restarts_pods_and_one_of_rules_does_not(tmp_path: Path) -> None:
    def template(rules: str, ontology: str) -> tuple[dict[str, Any], dict[str, str]]:
        files = {
            "rules": {"files": {"Support/graph_injection.yaml": rules}},
            "ontologies": {"support_v1.yaml": ontology},
        }
        objects = render(tmp_path, MINIMAL, files)
        found: dict[str, Any] = deployment(objects, "worker")["spec"]["template"]
        return found, of_kind(objects, "ConfigMap")["gw-graphweft-ontologies"]["data"]

    before, ontologies = template("a: 1\n", "entity_types: {A: b}\n")
    assert ontologies == {"support_v1.yaml": "entity_types: {A: b}\n"}
    [mount] = [each for each in before["spec"]["containers"][0]["volumeMounts"] if each["name"] == "ontologies"]
    assert mount["mountPath"] == "/ontologies", "beside /rules"
    assert template("a: 2\n", "entity_types: {A: b}\n")[0] == before
    assert template("a: 1\n", "entity_types: {A: c}\n")[0] != before


def test_without_rules_there_is_a_folder_and_no_job(tmp_path: Path) -> None:
    objects = render(tmp_path, MINIMAL)
    assert of_kind(objects, "Job") == {}
    volumes = deployment(objects, "worker")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "rules", "emptyDir": {}} in volumes, "a role needs the folder, even an empty one"


def test_alerts_and_dashboards_are_the_generated_files() -> None:
    objects = example("redis-falkordb")
    [rule] = of_kind(objects, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/graphweft-alerts.yaml").read_text("utf-8"))
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    dashboards = of_kind(objects, "ConfigMap")["gw-graphweft-dashboards"]["data"]
    files = {f"gw-{file.name}": file.read_text("utf-8") for file in (ROOT / "deploy/grafana").glob("*.json")}
    assert dashboards == files
    [with_address] = of_kind(example("kafka-neo4j"), "PrometheusRule").values()
    for each in with_address["spec"]["groups"][0]["rules"]:
        assert each["annotations"]["runbook_url"].startswith("https://docs.example.com/graphweft/alerts.html#")


def test_workers_are_scaled_by_the_lag_of_either_bus() -> None:
    [redis] = of_kind(example("redis-falkordb"), "ScaledObject").values()
    [trigger] = redis["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["threshold"] == "20000"
    assert 'namespace="prod", pod=~"gw-graphweft-worker-.+"' in trigger["metadata"]["query"]
    assert redis["spec"]["fallback"]["replicas"] == 2
    [kafka] = of_kind(example("kafka-neo4j"), "ScaledObject").values()
    [trigger] = kafka["spec"]["triggers"]
    assert trigger["type"] == "kafka"
    assert trigger["metadata"]["consumerGroup"] == channels.MUTATION_GROUP
    assert trigger["metadata"]["topic"] == channels.EVENTS_TOPIC
    assert trigger["authenticationRef"] == {"name": "graphweft-kafka"}


def _reaches(policy: dict[str, Any]) -> list[Any]:
    """Return what the pods of a policy may open, and to whom."""
    return [policy["spec"]["policyTypes"], policy["spec"].get("egress")]


@pytest.mark.parametrize("example_of", EXAMPLES)
@pytest.mark.parametrize("egress", [[], [{"ports": [{"port": 6379}]}]], ids=("default", "egress"))
def test_each_pod_has_one_policy_and_reaches_its_servers(
    tmp_path: Path, example_of: str, egress: list[dict[str, Any]]
) -> None:
    values = {"networkPolicy": {"enabled": True, "egress": egress}, "rules": {"files": {"W/graph_injection.yaml": "a"}}}
    objects = render(tmp_path, values, example=example_of)
    policies = of_kind(objects, "NetworkPolicy")
    owners = [each for kind in ("Deployment", "StatefulSet", "Job") for each in of_kind(objects, kind).values()]
    for owner in owners:
        labels = owner["spec"]["template"]["metadata"]["labels"]
        mine = [name for name, each in policies.items()
                if each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()]  # fmt: skip
        assert len(mine) == 1, owner["metadata"]["name"]
    push, worker = policies["gw-graphweft-rules-push"], policies["gw-graphweft-worker"]
    assert _reaches(push) == _reaches(worker), "it needs the same servers"
    assert push["spec"]["ingress"] == [], "it serves nothing"


def test_policies_open_the_ports_that_are_used() -> None:
    policies = of_kind(example("redis-falkordb"), "NetworkPolicy")
    ports = {name: [rule["ports"][0]["port"] for rule in each["spec"]["ingress"]] for name, each in policies.items()}
    assert ports["gw-graphweft-worker"] == ["probes"]
    assert ports["gw-graphweft-gateway"] == ["probes", "http"]
    for each in policies.values():
        assert {rule["port"] for rule in each["spec"]["egress"][0]["ports"]} == {53}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no image": ({"image": {"repository": ""}}, "image.repository: no image is named; set it to"),
    "no version": ({"image": {"tag": ""}}, "image.tag: this chart is from a source tree"),
    "no bus": ({"bus": {"url": ""}}, "bus.url: no server is named; set it to"),
    "two servers": ({"falkordb": {"enabled": True}}, "graph.url: falkordb.enabled brings a server of its own"),
    "login in a URL": ({"bus": {"url": "redis://me:secret@redis"}}, "bus.url: the URL holds a login"),
    "login with a slash in a URL": ({"bus": {"url": "redis://:sec/ret@redis"}}, "bus.url: the URL holds a login"),
    "user without a password": (
        {"graph": {"user": "me"}},
        'graph.user: there is no password for "me"; put it into a Secret that',
    ),
    "rules of no workflow": (
        {"rules": {"files": {"graph_injection.yaml": "", "W/rules.yaml": ""}}},
        "rules.files: none of the paths is WORKFLOW/graph_injection.yaml",
    ),
    "other bus": ({"bus": {"url": "amqp://rabbit"}}, r"at '/bus/url': 'amqp://rabbit' does not match pattern"),
    "TLS without its URL": (
        {"bus": {"tls": {"existingSecret": "ca"}}},
        'bus.tls.existingSecret: "redis://redis:6379" is no URL',
    ),
    "SASL on Redis": ({"bus": {"sasl": "PLAIN"}}, "bus.sasl: only Kafka has it"),
    "gateway without tokens": (
        {"gateway": {"enabled": True}},
        "gateway.existingSecret: the gateway needs tokens; make them",
    ),
    "console without tokens": (
        {"console": {"enabled": True}},
        "console.existingSecret: the console needs tokens; make them",
    ),
    "archive without a place": ({"archive": {"enabled": True}}, "archive.enabled: the archive has no place; set"),
    "memory without work": (
        {"memory": {"enabled": True}, "settings": {"memory_keep_days": 0}},
        "memory.enabled: the memory worker would have",
    ),
    "extractor without memory": (
        {"extractor": {"name": "graphiti:m"}},
        "extractor.name: episodes are read by the memory worker, which is off",
    ),
    "judge without memory": (
        {"judge": {"name": "openai:m"}},
        "judge.name: statements are compared by the memory worker, which is off",
    ),
    "scaling without a source": (
        {"worker": {"autoscaling": {"enabled": True}}},
        "worker.autoscaling: nothing says the lag; set",
    ),
    "scaling by Kafka on Redis": (
        {"worker": {"autoscaling": {"enabled": True, "kafkaServers": "kafka:9092"}}},
        'worker.autoscaling.kafkaServers: bus.url is "redis://redis:6379", no Kafka; use prometheusUrl',
    ),
    "more workers than partitions": (
        {"settings": {"partitions": 4}, "worker": {"autoscaling": {"enabled": True, "prometheusUrl": "http://p"}}},
        "worker.autoscaling.max: 8 workers share 4 partitions",
    ),
    "alerts without metrics": (
        {"metrics": {"enabled": False, "alerts": True}},
        "metrics.enabled: serviceMonitor and alerts need",
    ),
    "large rules": (
        {"rules": {"files": {"W/graph_injection.yaml": "x" * 900_001}}},
        "and a ConfigMap holds 1 MiB; leave them out",
    ),
    "a setting in the environment": (
        {"responder": {"env": [{"name": "GRAPHWEFT_BUS_URL", "value": "redis://x"}]}},
        "responder.env: GRAPHWEFT_BUS_URL is a setting of graphweft",
    ),
    "unknown value": ({"workers": {"replicas": 2}}, "additional properties 'workers' not allowed"),
    "unknown setting": (
        {"settings": {"max_request": 1}},
        "at '/settings': additional properties 'max_request' not allowed",
    ),
    "a secret among the settings": (
        {"settings": {"signing_key": "x"}},
        "additional properties 'signing_key' not allowed",
    ),
    "a setting out of its range": ({"settings": {"lease_s": 0}}, "at '/settings/lease_s': minimum: got 0, want 0.5"),
    "an ontology in a folder": (
        {"ontologies": {"a/b.yaml": ""}},
        "at '/ontologies': additional properties 'a/b.yaml' not allowed",
    ),
    "path out of the folder": (
        {"rules": {"files": {"../x.yaml": ""}}},
        "at '/rules/files': additional properties '../x.yaml' not allowed",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    values, said = WRONG[name]
    with pytest.raises(ChartError) as refused:
        render(tmp_path, MINIMAL, values)
    assert said in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ChartError) as refused:
        render(tmp_path, {"gateway": {"enabled": True}})
    lines = [line.split(":")[0] for line in str(refused.value).splitlines() if line.startswith("- ")]
    assert lines == ["- image.repository", "- image.tag", "- bus.url", "- graph.url", "- gateway.existingSecret"]


GUARD = (
    '{{- with include "graphweft.upgradeFaults" (dict "root" . "before" (fromJson `BEFORE`)) | trim }}'
    "{{ fail . }}{{ end }}"
)


@pytest.mark.parametrize(
    ("before", "values", "said"),
    [
        ({"version": "1.2.0"}, {}, ""),
        ({"version": "v1.2.9"}, {}, ""),
        ({"version": "1.1.4"}, {}, 'upgrade.from: 1.1.4 is installed, and 1.2.3 is another minor version'),
        ({"version": "1.3.0"}, {}, 'then set upgrade.from to "1.3"'),
        ({"version": "1.1.4"}, {"upgrade": {"from": "1.1"}}, ""),
        ({"version": "1.1.4"}, {"upgrade": {"from": "1.0"}}, 'then set upgrade.from to "1.1"'),
        ({"version": "local"}, {}, ""),
        ({"version": "1.2.0"}, {"settings": {"graph_template": "g_{app_id}"}}, "settings.graph_template: graphs "
        "are named by"),
    ],
)  # fmt: skip
def test_an_upgrade_to_another_minor_version_is_confirmed(
    before: dict[str, str], values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Helm gives what is installed only beside a cluster, so a template of this test does."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("examples"))
    installed = {"graphTemplate": "mozaiks_{app_id}", **before}
    (chart / "templates/zz.yaml").write_text(GUARD.replace("BEFORE", json.dumps(installed)), "utf-8")
    if not said:
        objects = render(tmp_path, MINIMAL, values, chart=chart)
        assert of_kind(objects, "ConfigMap")["gw-graphweft-installed"]["data"]["version"] == "1.2.3"
        return
    with pytest.raises(ChartError) as refused:
        render(tmp_path, MINIMAL, values, chart=chart)
    assert said in str(refused.value)


def test_the_package_of_a_release_has_its_version_and_the_linked_files(tmp_path: Path) -> None:
    helm("package", str(CHART), "--version", "1.2.3", "--app-version", "1.2.3", "--destination", str(tmp_path))
    with tarfile.open(tmp_path / "graphweft-1.2.3.tgz") as package:
        names = set(package.getnames())
        package.extractall(tmp_path, filter="data")
    assert "graphweft/files/graphweft-alerts.yaml" in names
    assert {"graphweft/files/dashboards/events.json", "graphweft/values.schema.json"} <= names
    assert not any("examples" in name for name in names)
    values = {**MINIMAL, "image": {"repository": "graphweft"}, "metrics": {"alerts": True}}
    objects = render(tmp_path, values, chart=tmp_path / "graphweft")
    [container] = deployment(objects, "worker")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "graphweft:1.2.3"
    [rule] = of_kind(objects, "PrometheusRule").values()
    assert len(rule["spec"]["groups"][0]["rules"]) > 20


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lint_finds_nothing(name: str) -> None:
    said = helm(
        "lint", str(CHART), "--strict", "--kube-version", "1.36.0", "--values", str(CHART / f"examples/{name}.yaml")
    )
    assert "0 chart(s) failed" in said
