"""The values of the Helm chart, from one declaration: ``values.yaml``, ``values.schema.json`` and the page of values.

The schema is strict: helm refuses an unknown value and an unknown setting with their path, before anything is applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from graphweft_workers.settings.settings import Settings

FOLDER: Final = "deploy/chart"
PAGE: Final = "docs/chart-values.md"
ROLES: Final = ("worker", "responder", "memory", "archive", "gateway", "console")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of the chart. ``schema`` holds the keywords of JSON Schema that it must meet."""

    text: str
    default: Any
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Values under one key."""

    text: str
    values: Mapping[str, Value | Section]


def _string(text: str, default: str = "", pattern: str = "", **more: Any) -> Value:
    return Value(
        text=text, default=default, schema={"type": "string", **({"pattern": pattern} if pattern else {}), **more}
    )


def _flag(text: str, default: bool = False) -> Value:
    return Value(text=text, default=default, schema={"type": "boolean"})


def _count(text: str, default: int, least: int = 1, most: int | None = None) -> Value:
    return Value(
        text=text, default=default,
        schema={"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})},
    )  # fmt: skip


def _map(text: str, default: Mapping[str, Any] | None = None, **schema: Any) -> Value:
    return Value(text=text, default=default or {}, schema={"type": "object", **schema})


def _list(text: str, **items: Any) -> Value:
    return Value(text=text, default=[], schema={"type": "array", "items": {"type": "object", **items}})


_SECRET: Final = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"
"""A name of Kubernetes, or nothing."""
_OWN: Final = frozenset(
    {
        *("apps", "archive_url", "bus_ca", "bus_cert", "bus_cert_key", "bus_sasl", "bus_url", "bus_user"),
        *("console_tokens", "embedder", "embedder_url", "extractor", "extractor_url", "gateway_tokens", "graph_ca"),
        *("graph_url", "graph_user", "log_format", "metrics", "probe_address", "rules", "signing_keys"),
        *("judge", "judge_url", "summariser", "summariser_url"),
    }
)
"""Settings that other values of the chart give."""
_ELSEWHERE: Final = frozenset({"console", "console_port", "data", "fsync", "worker_name", "kafka_instance"})
"""Settings of `graphweft up`, and those that must differ between pods."""


_KEYWORDS: Final = ("type", "enum", "minimum", "maximum")
"""Not ``pattern``: the expressions of helm bound the product of repetitions. The role itself checks it."""


def settings() -> dict[str, Any]:
    """Return the schemas of what ``settings`` may hold: no secrets, and none that another value gives."""
    found = Settings.model_json_schema()
    return {
        name: _setting(schema, found.get("$defs", {}))
        for name, schema in sorted(found["properties"].items())
        if name not in _OWN | _ELSEWHERE and not _is_secret(schema)
    }


def _is_secret(schema: Mapping[str, Any]) -> bool:
    return any(each.get("format") == "password" for each in schema.get("anyOf", [schema]))


def _setting(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    [first, *_] = schema.get("anyOf", [schema])  # the other one is null
    first = {**first, **definitions.get(first.get("$ref", "").rpartition("/")[2], {})}
    said = schema.get("description")
    return {**({"description": said} if said else {}), **{key: first[key] for key in _KEYWORDS if key in first}}


def _settings(text: str) -> Value:
    return Value(text=text, default={}, schema={"$ref": "#/definitions/settings"})


def _secret(text: str) -> Value:
    return _string(text, pattern=_SECRET)


def _model(what: str, example: str, default: str) -> Section:
    return Section(
        text=f"The {what}, for all roles that use it.",
        values={
            "name": _string(f"As `GRAPHWEFT_{what.upper()}`, such as `{example}`.", default),
            "url": _string(f"As `GRAPHWEFT_{what.upper()}_URL`."),
            "existingSecret": _secret("Secret with the key of the endpoint in `api-key`."),
        },
    )


def _resources(cpu: str, memory: str, most: str) -> Value:
    return _map(
        "Requests and limits of the container. There is no limit of the processor by default: it would hold "
        "event loops.",
        {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": most}},
    )


def _cpu_scaling() -> Section:
    return Section(
        text="A HorizontalPodAutoscaler by processor time. With it, `replicas` has no effect.",
        values={
            "enabled": _flag("Make it."),
            "min": _count("Fewest pods.", 2),
            "max": _count("Most pods.", 8),
            "cpu": _count(
                "Share of the requested processor time that pods shall use on average, in per cent.", 70, 1, 100
            ),
        },
    )


def _role(
    text: str, *, enabled: bool, cpu: str, memory: str, most: str, replicas: int = 1, single: bool = False,
    **more: Value | Section,
) -> Section:  # fmt: skip
    return Section(
        text=text,
        values={
            "enabled": _flag("Run this role.", enabled),
            **(
                {}
                if single
                else {
                    "replicas": _count("Pods. With more than one, a PodDisruptionBudget keeps all but one.", replicas)
                }
            ),
            **more,
            "settings": _settings("Settings of this role, before those of `settings`."),
            "env": _list("Environment of this role, as `env` above.", required=["name"]),
            "resources": _resources(cpu, memory, most),
            "podAnnotations": _map("Annotations of its pods."),
            "nodeSelector": _map("Nodes for its pods."),
            "tolerations": _list("Taints that its pods tolerate."),
            "priorityClassName": _string("Its PriorityClass."),
        },
    )


VALUES: Final[Mapping[str, Value | Section]] = {
    "image": Section(
        text="The image of all roles, which `deploy/Dockerfile` builds.",
        values={
            "repository": _string("Registry and name, such as `registry.example/graphweft`; required."),
            "tag": _string("Tag; without it, the version of the chart."),
            "digest": _string("Digest, in place of the tag.", pattern=r"^(sha256:[0-9a-f]{64})?$"),
            "pullPolicy": _string("As in Kubernetes.", "IfNotPresent", enum=["Always", "IfNotPresent", "Never"]),
            "pullSecrets": _list("Secrets for the registry, as `[{name: …}]`.", required=["name"]),
        },
    ),
    "bus": Section(
        text="The bus. The chart installs none, but for `falkordb` below.",
        values={
            "url": _string(
                "URL without a login, such as `redis://redis:6379`, `rediss://…`, `kafka://kafka:9092` or "
                "`kafka+ssl://…`.",
                pattern=r"^((rediss?|rediss?\+sentinel|kafka|kafka\+ssl)://.+)?$",
            ),
            "user": _string("User; without it, the server's default one."),
            "existingSecret": _secret("Secret with the password in `password`."),
            "sasl": _string("For Kafka: how the user logs in.", enum=["", "SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]),
            "tls": Section(
                text="Certificates, for `rediss://` and `kafka+ssl://`.",
                values={
                    "existingSecret": _secret(
                        "Secret with the authorities of the server in `ca.crt`; without it, those of the system."
                    ),
                    "clientCertificate": _flag("Show the certificate in `tls.crt` and `tls.key` of that Secret."),
                },
            ),
        },
    ),
    "graph": Section(
        text="The graph server. The chart installs none, but for `falkordb` below.",
        values={
            "url": _string(
                "URL without a login, such as `redis://falkordb:6379`, `rediss://…`, `neo4j://neo4j:7687` or "
                "`neo4j+s://…`.",
                pattern=r"^((rediss?|rediss?\+sentinel|neo4j|neo4j\+s|bolt|bolt\+s)://.+)?$",
            ),
            "user": _string("User; without it, the server's default one."),
            "existingSecret": _secret("Secret with the password in `password`."),
            "tls": Section(
                text="Certificates, for `rediss://`, `neo4j+s://` and `bolt+s://`.",
                values={
                    "existingSecret": _secret(
                        "Secret with the authorities of the server in `ca.crt`; without it, those of the system."
                    ),
                },
            ),
        },
    ),
    "falkordb": Section(
        text="One FalkorDB for bus and graph, to try graphweft: a single pod without a password. Not for data "
        "that you need.",
        values={
            "enabled": _flag("Run it, in place of `bus.url` and `graph.url`."),
            "image": _string("Its image.", "falkordb/falkordb:v4.22.0"),
            "storage": _string("Size of its volume.", "5Gi", pattern=r"^[0-9]+(Mi|Gi|Ti)$"),
            "storageClass": _string("Class of its volume; without it, that of the cluster."),
            "resources": _map(
                "Requests and limits.",
                {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
            ),
        },
    ),
    "rules": Section(
        text="Rules. Leave them out if your CI runs `graphweft rules push`.",
        values={
            "files": _map(
                "Text by path, such as `Support/graph_injection.yaml`; 900 kB at most. A job pushes them after "
                "each install and upgrade.",
                patternProperties={r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$": {"type": "string"}},
                additionalProperties=False,
            ),
            "checked": _flag("Check the queries with the graph server before they are pushed.", True),
        },
    ),
    "ontologies": _map(
        "[Ontologies](episodes.md#ontologies): text by file name, such as `support_v1.yaml`. A change restarts "
        "the pods.",
        patternProperties={r"^[a-z][a-z0-9_]{0,63}\.ya?ml$": {"type": "string"}},
        additionalProperties=False,
    ),
    "settings": _settings(
        "Settings of all roles by their names in [graphweft.yaml](commands.md#settings), such as `{max_requests: 128}`."
    ),
    "env": _list(
        "Environment of all roles, as in Kubernetes: `OTEL_…`, keys of an object store. No `GRAPHWEFT_…`: those "
        "are values.",
        required=["name"],
    ),
    "appPolicies": _map(
        "What each app may do: the content of the file of [policies](http.md#policies-of-apps). A change needs "
        "no restart.",
    ),
    "signing": Section(
        text="Signatures of events, see [security](security.md#signatures).",
        values={
            "existingSecret": _secret(
                "Secret with the file of keys in `keys.yaml`, and the files that it names; for all roles that "
                "read the log."
            )
        },
    ),
    "archive": Section(
        text="Where the [archive](archive.md) of the log is, and the role that writes it.",
        values={
            "url": _string("URL of an object store, such as `s3://bucket/graphweft`. The image needs the "
            "package for it."),
            "existingClaim": _secret("In place of `url`: a claim that all pods can mount at once (ReadWriteMany)."),
            **_role(
                "", enabled=False, cpu="100m", memory="256Mi", most="1Gi", single=True,
            ).values,
        },
    ),
    "embedder": _model("embedder", "openai:text-embedding-3-small", "none"),
    "extractor": _model("extractor", "graphiti:gpt-5-mini", "none"),
    "summariser": _model("summariser", "openai:gpt-5-mini", "extractive"),
    "judge": _model("judge", "openai:gpt-5-mini", "none"),
    "worker": _role(
        "Mutation workers: apply events to the graphs.",
        enabled=True, cpu="500m", memory="512Mi", most="2Gi", replicas=2,
        autoscaling=Section(
            text="A ScaledObject of KEDA by the lag. With it, `replicas` has no effect. Name one source of the lag.",
            values={
                "enabled": _flag("Make it."),
                "min": _count("Fewest workers.", 1),
                "max": _count("Most workers; more than partitions do nothing.", 8, 1, 256),
                "lag": _count("Events that may wait for each worker.", 20_000),
                "prometheusUrl": _string(
                    "Source for any bus: a Prometheus that scrapes the workers, such as "
                    "`http://prometheus.monitoring:9090`.",
                    pattern=r"^(https?://.+)?$",
                ),
                "kafkaServers": _string("Source for Kafka: its brokers, such as `kafka:9092`."),
                "authentication": _secret("A TriggerAuthentication for the source, which you made."),
            },
        ),
    ),
    "responder": _role(
        "Responders: answer context requests.",
        enabled=True, cpu="500m", memory="512Mi", most="1Gi", replicas=2, autoscaling=_cpu_scaling(),
    ),
    "memory": _role(
        "The memory worker: vectors, summaries and facts. It needs a model, or a setting of its jobs.",
        enabled=False, cpu="250m", memory="512Mi", most="2Gi",
    ),
    "gateway": _role(
        "The [HTTP gateway](http.md). Put TLS before it.",
        enabled=False, cpu="250m", memory="256Mi", most="1Gi", replicas=2,
        existingSecret=_secret("Secret with the hashes of tokens in `tokens.yaml`; required."),
        mcp=_flag("Serve the tools of [MCP](runtimes/mcp.md#over-http) at `/mcp`, too."),
        signingSecret=_secret("Secret with the gateway's key in `signing-key`, if events are signed."),
        autoscaling=_cpu_scaling(),
    ),
    "console": _role(
        "The [console](console.md). Put TLS before it.",
        enabled=False, cpu="100m", memory="256Mi", most="1Gi", single=True,
        existingSecret=_secret("Secret with the hashes of tokens in `tokens.yaml`; required."),
    ),
    "metrics": Section(
        text="[Metrics](metrics.md) at port 8080 of each pod, beside the probes.",
        values={
            "enabled": _flag("Count.", True),
            "serviceMonitor": _flag("Make a ServiceMonitor for the Prometheus operator."),
            "alerts": _flag("Make a PrometheusRule with the [alerts](alerts.md)."),
            "dashboards": _flag("Make a ConfigMap with the dashboards, for the sidecar of Grafana."),
            "labels": _map(
                "Labels of ServiceMonitor and PrometheusRule, such as `{release: prometheus}`.",
                additionalProperties={"type": "string"},
            ),
            "interval": _string("How often Prometheus asks.", "15s", pattern=r"^[0-9]+(s|m)$"),
            "runbooks": _string(
                "Address of your copy of the documentation, such as `https://docs.example/graphweft`, for the "
                "links of alerts.",
                pattern=r"^(https?://.+[^/])?$",
            ),
        },
    ),
    "networkPolicy": Section(
        text="Who may reach the pods, and whom they may reach.",
        values={
            "enabled": _flag("Make NetworkPolicies."),
            "metricsFrom": _list("Who may scrape metrics, as peers of Kubernetes; empty: pods of the namespace."),
            "clientsFrom": _list("Who may reach gateway and console, as peers of Kubernetes; empty: pods of the "
            "namespace."),
            "egress": _list("Rules for what pods may reach besides DNS; empty: everything. Name bus, graph, "
            "models and archive."),
        },
    ),
    "serviceAccount": Section(
        text="The account of all pods. They do not use the API of Kubernetes.",
        values={
            "name": _secret("An account that exists; without it, the chart makes one."),
            "annotations": _map("Annotations of the account, such as a role for the object store."),
        },
    ),
    "upgrade": Section(
        text="The guard of upgrades, see [upgrade](kubernetes.md#upgrade).",
        values={
            "from": _string(
                "The installed minor version, such as `1.2`: allows an upgrade or a way back from it to another one.",
                pattern=r"^([0-9]+\.[0-9]+)?$",
            )
        },
    ),
    "nameOverride": _string("Name of the chart in names and labels.", pattern=r"^([a-z][-a-z0-9]{0,38})?$"),
}  # fmt: skip


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the values."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart graphweft",
        "$comment": "`make generate` writes this file from tools/chart.py.",
        "definitions": {"settings": {"type": "object", "additionalProperties": False, "properties": settings()}},
        **_object({**VALUES, "global": _map("Values of a parent chart, which this one does not read.")}),
    }


def values() -> str:
    """Return the file with the default values."""
    return (
        "# The values of the chart, with their defaults. `make generate` writes this file from tools/chart.py.\n"
        + "".join(_lines(VALUES, 0))
    )


def page() -> str:
    """Return the page with all values."""
    parts = [
        "# Values of the chart\n\n<!-- `make generate` writes this page from tools/chart.py. -->\n\n"
        "What `helm install --values` may set; [Kubernetes](kubernetes.md) has examples. An unknown value is refused.\n"
    ]
    plain = {name: each for name, each in VALUES.items() if isinstance(each, Value)}
    for name, section in VALUES.items():
        if isinstance(section, Section):
            parts.append(f"\n## {name}\n\n{section.text}\n\n{_table(section.values, '')}")
    parts.append(f"\n## Others\n\n{_table(plain, '')}")
    return "".join(parts)


def _object(found: Mapping[str, Value | Section]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"description": each.text, **each.schema, "default": each.default}
            if isinstance(each, Value)
            else {"description": each.text, **_object(each.values)}
            for name, each in found.items()
        },
    }


def _lines(found: Mapping[str, Value | Section], depth: int) -> Iterator[str]:
    margin = "  " * depth
    for name, each in found.items():
        if depth == 0:
            yield "\n"
        yield f"{margin}# {each.text}\n"
        if isinstance(each, Section):
            yield f"{margin}{name}:\n"
            yield from _lines(each.values, depth + 1)
        else:
            yield f"{margin}{name}: {_flow(each.default)}\n"


def _flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in entries.items()) + "}"
    return json.dumps(value)


def _table(found: Mapping[str, Value | Section], prefix: str) -> str:
    return "| value | default | meaning |\n|---|---|---|\n" + "".join(_rows(found, prefix))


def _rows(found: Mapping[str, Value | Section], prefix: str) -> Iterator[str]:
    for name, each in found.items():
        if isinstance(each, Section):
            yield from _rows(each.values, f"{prefix}{name}.")
        else:
            default = "" if each.default in ("", {}, []) else f"`{_flow(each.default)}`"
            yield f"| `{prefix}{name}` | {default} | {each.text} |\n"


__all__ = ("FOLDER", "PAGE", "ROLES", "VALUES", "page", "schema", "settings", "values")
