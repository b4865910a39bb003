"""All settings, from the environment (``GRAPHWEFT_*``) and ``graphweft.yaml``; the environment wins.

A setting that holds a secret may name a file with it: ``GRAPHWEFT_X_FILE``, or ``x_file`` in graphweft.yaml.

An empty variable counts as not set, because compose files pass unset variables as empty ones. Some settings can also be
given by the variables of other tools: the graph by those of its product (see ``drivers.settings``), the embedder
``azure`` by ``AZURE_*``, the extractor ``graphiti`` by those of Graphiti's server.

An unknown setting stops a command, because a misspelled one would otherwise be found in production; a process that runs
a role only logs a warning about a variable.

No other module of this package reads the environment, except ``settings.sources``, ``heartbeat`` and
``drivers.settings``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator

from graphweft.secret_files import FILE
from graphweft.transports.embedded import DEFAULT_DATA, embedded_url
from graphweft.variables import PREFIX
from graphweft_contracts import InvalidSettings, Order
from graphweft_contracts.signatures import SigningKey
from graphweft_workers.drivers.settings import MOST_TIMEOUT_MS
from graphweft_workers.settings.console import ConsoleSettings
from graphweft_workers.settings.sources import (
    SettingValue,
    as_field,
    as_variable,
    header_pairs,
    header_value,
    http_url,
    of_file,
    of_other_tools,
    of_secret_files,
    own_variables,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_FORMS: Final = {
    "graph_template": "a name with {app_id} in it, as mozaiks_{app_id}",
    "context_off": "ids of apps, separated by commas, or * for all",
    "metrics_apps": "ids of apps, separated by commas, 50 at most",
    "console_hosts": "names of hosts, separated by commas",
    "extractor": "none, graphiti, or graphiti:MODEL, as graphiti:gpt-5-mini",
    "summariser": "extractive, or openai:MODEL, as openai:gpt-5-mini",
    "judge": "none, or openai:MODEL, as openai:gpt-5-mini",
}
"""What may be written where a setting has a pattern."""
_LAST_PORT: Final = 65_535
CONFIG_FILE: Final = "graphweft.yaml"
_CONFIG: Final = "config"
_MCP: Final = ("mcp_app", "mcp_user", "mcp_thread", "mcp_agent_id", "mcp_application")
_HOOK: Final = ("hook_app", "hook_user", "hook_workflow", "hook_agent")
_CLIENT: Final = ("context", "capture", "gateway_url", "gateway_token", "gateway_token_file")
_NO_SETTINGS: Final = frozenset({_CONFIG, "heartbeat_dir", *_CLIENT, *_HOOK, *_MCP})
"""``_CONFIG`` names the settings file; the others are the client's, options of commands, and the health check's."""


class Settings(ConsoleSettings):
    """The settings of every graphweft command; field ``x_y`` is ``GRAPHWEFT_X_Y`` or ``x_y:`` in graphweft.yaml."""

    data: Path = Field(default=DEFAULT_DATA, description="Folder of the embedded server (`graphweft up --data`).")
    rules: Path = Field(default=Path("workflows"), description="Folder of workflows with graph_injection.yaml files.")
    graph_template: str = Field(
        default="mozaiks_{app_id}", pattern=r"\{app_id\}", description="Name of an app's graph; holds {app_id}."
    )
    partitions: int = Field(default=64, ge=1, le=256, description="Partitions of a new bus; another keeps its number.")
    order: Order = Field(
        default="app",
        description="Order on a new bus: app, all events of an app take effect in log order; or chat, those of a chat.",
    )
    worker_name: str | None = Field(
        default=None, description="Name under which a worker holds its partitions; by default host and process."
    )
    batch_events: int = Field(default=1_000, ge=1, le=10_000, description="Maximum number of events in one batch.")
    archive_url: str | None = Field(
        default=None,
        description="Folder or URL (s3://bucket/prefix, …) of the archive of the log; with the embedded server, "
        "`archive` in the folder of `data`.",
    )
    archive_every_s: float = Field(
        default=10.0, ge=0.05, le=3_600, description="Seconds after which the archive gets entries that it lacks."
    )
    snapshot_events: int = Field(
        default=100_000,
        ge=0,
        le=1_000_000_000,
        description="Events after which a replay keeps a snapshot of the graph in the archive; 0: it neither keeps nor "
        "uses any.",
    )
    archive_trim: bool = Field(
        default=False,
        description="Whether the archive role removes entries from the bus that are archived and applied.",
    )
    effects_keep: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="Messages that the effects stream keeps, about; a topic keeps 64 MiB. 0: workers write none.",
    )
    lease_s: float = Field(
        default=10.0, ge=0.5, le=600, description="Seconds after which a dead worker's partitions are taken over."
    )
    mutation_timeout_ms: int = Field(
        default=5_000,
        ge=1,
        le=MOST_TIMEOUT_MS,
        description="Server-side limit of one mutation query. One that may compute after its first write has 1.5 s "
        "on a server where nothing else runs meanwhile.",
    )
    query_timeout_ms: int = Field(
        default=5_000, ge=1, le=MOST_TIMEOUT_MS, description="Server-side limit of one injection query."
    )
    max_requests: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="Concurrent context requests of one responder; from 8 on, one app gets at most half of them.",
    )
    context_off: str | None = Field(
        default=None,
        pattern=r"^(\*|[A-Za-z0-9_-]{1,64}( *, *[A-Za-z0-9_-]{1,64})*)$",
        description="Apps that get no context, separated by commas; * is all of them.",
    )
    context_cache_mb: int = Field(
        default=64, ge=0, le=65_536, description="Megabytes of rows that a responder caches; 0 caches none."
    )
    context_index_mb: int = Field(
        default=128, ge=0, le=65_536, description="Megabytes of indexes of scopes that a responder keeps; 0 keeps none."
    )
    context_last_good_s: float = Field(
        default=600.0,
        ge=0,
        le=31_536_000,
        description="Seconds for which cached rows replace those of an unavailable graph.",
    )
    context_redact: bool = Field(
        default=True, description="Whether passwords, keys and other secrets are left out of the text of a context."
    )
    token_counter: str = Field(
        default="chars",
        description="How tokens are counted: chars (a quarter of them), or tiktoken:<encoding or model>.",
    )
    graphrag_enabled: bool = Field(
        default=False,
        description="Whether `graphrag:` queries ask the graph: true, 1, yes or on; without it `GRAPHRAG_ENABLED`, "
        "then `GRAPH_RAG_ENABLED`.",
    )
    graph_expand_max_hops: int = Field(
        default=2,
        ge=0,
        description="Relationships that graphrag follows from the first entities, 2 at most; without it "
        "`GRAPH_EXPAND_MAX_HOPS`.",
    )
    graph_expand_limit: int = Field(
        default=100, ge=1, description="Entities of one graphrag query, 100 at most; without it `GRAPH_EXPAND_LIMIT`."
    )
    graph_max_results: int = Field(
        default=50, ge=1, description="Facts of one graphrag query, 50 at most; without it `GRAPH_MAX_RESULTS`."
    )
    extractor: str = Field(
        default="none",
        pattern=r"^(none|graphiti(:.+)?)$",
        description="The reader of entities and relations in text episodes: none, or graphiti:<model>; for graphiti "
        "alone `MODEL_NAME` is the model.",
    )
    extractor_url: str | None = Field(
        default=None,
        description="Base URL of the extractor's endpoint, the part before /chat/completions; for graphiti without it "
        "`OPENAI_BASE_URL`.",
    )
    extractor_api_key: SecretStr | None = Field(
        default=None, description="Key of the extractor's endpoint; for graphiti without it `OPENAI_API_KEY`."
    )
    extractor_timeout_ms: int = Field(
        default=120_000,
        ge=1,
        le=MOST_TIMEOUT_MS,
        description="Limit of reading one episode; it may take several requests to the model.",
    )
    extractor_attempts: int = Field(
        default=5, ge=1, le=100, description="Tries of one episode before it becomes a dead letter."
    )
    extractor_at_once: int = Field(
        default=4, ge=1, le=64, description="Episodes of one partition that are read at the same time."
    )
    embedder: str = Field(
        default="none",
        description="The embedder of texts: none, hash:<dimensions>, minilm, sentence-transformers:<name or "
        "folder>, openai:<model>, or azure.",
    )
    embedder_url: str | None = Field(
        default=None,
        description="Base URL of the embedder's endpoint, the part before /embeddings; for azure without it "
        "`AZURE_AI_PROJECT_ENDPOINT`.",
    )
    embedder_api_key: SecretStr | None = Field(
        default=None,
        description="Key of the embedder's endpoint; for azure without it `AZURE_AI_API_KEY` or "
        "`AZURE_OPENAI_API_KEY`.",
    )
    embedder_timeout_ms: int = Field(
        default=10_000, ge=1, le=MOST_TIMEOUT_MS, description="Limit of one request to the embedder."
    )
    memory_summarise_after: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Number of memories without a summary at which the oldest of a thread are condensed; 0 never "
        "condenses. Off by default, because a summary stays: a better summariser does not replace it.",
    )
    memory_summarise_keep: int = Field(
        default=20, ge=0, le=999, description="Newest memories of a thread that are left out of summaries."
    )
    summariser: str = Field(
        default="extractive",
        pattern=r"^(extractive|openai:.+)$",
        description="The summariser of memories: extractive (picks sentences, knows a few English phrases), or "
        "openai:<model>.",
    )
    summariser_url: str | None = Field(
        default=None, description="Base URL of the summariser's endpoint, the part before /chat/completions."
    )
    summariser_api_key: SecretStr | None = Field(default=None, description="Key of the summariser's endpoint.")
    summariser_timeout_ms: int = Field(
        default=60_000, ge=1, le=MOST_TIMEOUT_MS, description="Limit of one request to the summariser."
    )
    judge: str = Field(
        default="none",
        pattern=r"^(none|openai:.+)$",
        description="The model that compares what a user states with what the user stated before: none, or "
        "openai:<model>.",
    )
    judge_url: str | None = Field(
        default=None, description="Base URL of the judge's endpoint, the part before /chat/completions."
    )
    judge_api_key: SecretStr | None = Field(default=None, description="Key of the judge's endpoint.")
    judge_timeout_ms: int = Field(
        default=60_000, ge=1, le=MOST_TIMEOUT_MS, description="Limit of one request to the judge."
    )
    memory_keep_days: float = Field(
        default=0, ge=0, le=36_500, description="Days after which memories are forgotten; 0 keeps them."
    )
    memory_keep_count: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Number of newest memories to keep for each user, and for each thread without a user; 0 keeps all.",
    )
    signing_key: SecretStr | None = Field(
        default=None,
        description="Key that signs the events and requests of this process, as `graphweft key new` prints it; without "
        "it a process with `signing_keys` signs with the newest worker's key.",
    )
    signing_keys: Path | None = Field(
        default=None,
        description="YAML file with the keys of apps, workers and gateways: entries of apps that have keys need a "
        "signature.",
    )
    gateway_tokens: Path | None = Field(
        default=None, description="YAML file with the hashes of the tokens that the HTTP gateway accepts."
    )
    audit_log: str | None = Field(
        default=None,
        description="File to which the gateway appends a JSON line for each request, without payloads; - is standard "
        "output.",
    )
    gateway_connections: int = Field(
        default=500,
        ge=0,
        le=2_000,
        description="Open connections of one address to a gateway; 0 does not limit them, for a gateway behind a proxy "
        "that does.",
    )
    apps: Path | None = Field(
        default=None,
        description="YAML file with what each app may do: the workflows whose rules it uses. A change takes effect "
        "without a restart.",
    )
    probe_address: str | None = Field(
        default=None,
        description="Address, as 0.0.0.0:8080, at which a role answers the probes /livez, /readyz and /startupz; "
        "port 0 takes a free one, which the log names. Without it, it answers none.",
    )
    metrics: bool = Field(
        default=False,
        description="Whether a role counts metrics and answers /metrics beside its probes; see docs/metrics.md.",
    )
    metrics_apps: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]{1,64}( *, *[A-Za-z0-9_-]{1,64}){0,49}$",
        description="Apps that metrics tell apart, separated by commas, 50 at most; without it, none.",
    )
    metrics_otlp_url: str | None = Field(
        default=None,
        description="URL to which a role pushes metrics by OTLP over HTTP, as http://collector:4318/v1/metrics.",
    )
    metrics_otlp_headers: SecretStr | None = Field(
        default=None, description="Headers of these requests, as name=value, separated by commas."
    )
    metrics_every_s: float = Field(default=30.0, ge=1, le=3_600, description="Seconds between two of these requests.")
    fsync: Literal["always", "everysec"] = Field(
        default="always", description="Embedded server: write each change to disk at once, or every second."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    loop_limit_ms: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="For developers: a role logs the error `event_loop_held` with the stack when one piece of work "
        "takes its event loop for more than so many milliseconds of processor time. It costs a few per cent.",
    )
    log_format: Literal["console", "json"] = "console"

    @field_validator("embedder_url", "summariser_url", "extractor_url", "judge_url", "metrics_otlp_url")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        return None if value is None else http_url(value)

    @field_validator("embedder_api_key", "summariser_api_key", "extractor_api_key", "judge_api_key")
    @classmethod
    def _key(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else SecretStr(header_value(value.get_secret_value()))

    @field_validator("metrics_otlp_headers")
    @classmethod
    def _headers(cls, value: SecretStr | None) -> SecretStr | None:
        header_pairs("" if value is None else value.get_secret_value())
        return value

    @field_validator("signing_key")
    @classmethod
    def _signing_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                SigningKey.parse(value.get_secret_value())
            except InvalidSettings as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("data", "rules", "gateway_tokens", "console_tokens", "apps", "signing_keys")
    @classmethod
    def _home(cls, value: Path | None) -> Path | None:
        try:
            return value and value.expanduser()
        except RuntimeError as error:
            msg = f"{str(value)!r} starts with ~ or ~user, and that user has no home folder here: write the full path"
            raise ValueError(msg) from error

    @field_validator("probe_address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        found = value and re.fullmatch(r"(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})", value, re.ASCII)
        if value is not None and not (found and int(found[1]) <= _LAST_PORT):
            msg = f"invalid address {value!r}: expected host:port, as 0.0.0.0:8080 or [::]:8080"
            raise ValueError(msg)
        return value

    @field_validator("graph_template")
    @classmethod
    def _plain_template(cls, value: str) -> str:
        try:
            parts = list(Formatter().parse(value))
        except ValueError:
            parts = [("", "", "", "")]
        # A shortened or converted app_id could be the same for two apps.
        if any(
            field is not None and (field, spec or "", change) != ("app_id", "", None)
            for _, field, spec, change in parts
        ):
            msg = f"invalid name {value!r}: only {{app_id}} may stand in braces"
            raise ValueError(msg)
        return value

    @classmethod
    def load(
        cls,
        *,
        file: Path | None = None,
        cwd: bool = True,
        unknown: list[str] | None = None,
        through_gateway: bool = False,
        **more: Any,
    ) -> Self:
        """Read environment and file; ``more`` (not None) wins. Raises ``InvalidSettings`` naming each fault.

        ``file`` defaults to ``GRAPHWEFT_CONFIG``, then, with ``cwd``, to a ``graphweft.yaml`` in the working folder.
        With ``unknown``, unknown variables do not raise: a warning for each is appended to it. ``through_gateway`` says
        that the command uses the gateway of ``GRAPHWEFT_GATEWAY_URL`` if there is one. A ``data`` in ``more`` that the
        environment does not give is refused beside a bus or such a gateway, which would silently take its place.
        """
        variables = own_variables()
        path = file or (Path(named) if (named := variables.get(as_variable(_CONFIG))) else None)
        if path is not None and not path.is_file():
            raise InvalidSettings(
                f"the settings file {str(path)!r} {'is not a file' if path.exists() else 'does not exist'}"
            )
        if path is None and cwd and Path(CONFIG_FILE).is_file():
            path = Path(CONFIG_FILE)
        fields = cls.model_fields
        in_file = {} if path is None else of_file(path)
        secrets = [name for name, field in fields.items() if field.annotation == SecretStr | None]
        in_secret_files = of_secret_files(secrets, variables, in_file)
        faults = [*_file_faults(in_file)]
        strangers = [name for name in variables if as_field(name) not in fields.keys() | _NO_SETTINGS]
        if unknown is None:
            names = fields.keys() | _NO_SETTINGS
            faults += [
                _unknown(f"unknown environment variable {name!r}", as_field(name), names, as_variable)
                for name in strangers
            ]
        else:
            unknown += map(_warning, strangers)
        if faults:
            raise InvalidSettings("\n".join(faults))
        set_ones = {name: SettingValue(value, name) for name, value in variables.items() if value}
        environment = {as_field(name): given for name, given in set_ones.items() if as_field(name) in fields}
        chosen = in_file | in_secret_files | environment
        options = {name: SettingValue(value, "an option") for name, value in more.items() if value is not None}
        if "data" in options and "bus_url" not in options:
            gateway = set_ones.get(as_variable("gateway_url")) if through_gateway else None
            _refuse_beside(str(options["data"].value), variables, chosen.get("bus_url"), gateway)
        chosen |= options
        chosen |= of_other_tools(chosen)
        try:
            found = cls(**{name: given.value for name, given in chosen.items()})
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, fault['loc']))}: {_said(fault)} (set by {chosen[str(fault['loc'][0])].origin})"
                if fault["loc"]
                else _said(fault)  # of several settings, which its text names
                for fault in error.errors(include_input=False, include_url=False, include_context=False)
            ]
            # The cause would show its input to whoever prints it, and a URL may hold a password.
            raise InvalidSettings("\n".join(lines)) from None
        if "graph_password" in chosen:
            found._graph_password_file = chosen["graph_password"].file
        return found

    def as_environment(self) -> dict[str, str]:
        """Return the environment of this process with the settings in it, for a child process."""
        values = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(PREFIX) or name.upper() in map(as_variable, _NO_SETTINGS)
        }
        for name in self.model_fields_set:
            value: Any = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, Path):
                value = value.expanduser().resolve()
            if value is not None:
                values[as_variable(name)] = str(value)
        if self._graph_password_file:
            values.pop(as_variable("graph_password"), None)
            values[as_variable("graph_password") + FILE] = self._graph_password_file
        return values

    @property
    def context_off_apps(self) -> frozenset[str]:
        """The app ids of ``context_off``; ``*`` stands for all."""
        return frozenset(name for part in (self.context_off or "").split(",") if (name := part.strip()))

    @property
    def metrics_app_ids(self) -> frozenset[str]:
        """The app ids of ``metrics_apps``."""
        return frozenset(name for part in (self.metrics_apps or "").split(",") if (name := part.strip()))

    @property
    def metrics_headers(self) -> dict[str, str]:
        """The headers of ``metrics_otlp_headers``, by name."""
        return header_pairs("" if self.metrics_otlp_headers is None else self.metrics_otlp_headers.get_secret_value())

    @property
    def embedded(self) -> bool:
        """Whether the bus is the embedded server."""
        return self.bus_url is None

    @property
    def archives(self) -> bool:
        """Whether the settings ask for the archive role. Without, an archive may still be there: of an erasure."""
        return self.archive_url is not None or self.archive_trim

    @property
    def archive(self) -> str | None:
        """The folder or URL of the archive, whether it holds anything or not; None: the settings name none."""
        if self.archive_url is None and self.embedded:
            return str(self.data.expanduser().resolve() / "archive")
        return self.archive_url

    @property
    def bus(self) -> str:
        """The URL of the bus, which may hold a password: not for logs."""
        if self.bus_url is None:
            return embedded_url(self.data)
        return self.bus_access.applied(self.bus_url.get_secret_value(), "bus")

    @property
    def graph(self) -> str:
        """The URL of the graph server, which may hold a password: not for logs."""
        if self.graph_url is None:
            return embedded_url(self.data)
        return self.graph_access.applied(self.graph_url.get_secret_value(), "graph")


def _file_faults(in_file: Mapping[str, SettingValue]) -> Iterator[str]:
    """Yield what is wrong with the settings of a file before the model sees them."""
    fields = Settings.model_fields
    for name, given in in_file.items():
        if name not in fields:
            yield _unknown(f"{given.origin}: unknown setting {name!r}", name, fields.keys(), str)
        elif isinstance(given.value, bool) and (fields[name].annotation is int or fields[name].annotation is float):
            yield f"{name}: expected a number, not {str(given.value).lower()} (set by {given.origin})"


def _refuse_beside(data: str, variables: Mapping[str, str], *servers: SettingValue | None) -> None:
    """Raise if there is a server beside ``--data``: it would be used, and not the folder."""
    other = next((given for given in servers if given is not None and given.value), None)
    if other is not None and data not in {"", variables.get(as_variable("data"))}:
        raise InvalidSettings(
            f"--data {data!r} names the folder of an embedded server, and {other.origin} another server, which would "
            "take its place: leave out one of them"
        )


def _said(fault: ErrorDetails) -> str:
    if fault["type"] in {"bool_parsing", "bool_type"}:
        return "invalid boolean: write true, 1, yes or on, or false, 0, no or off"
    if fault["type"] == "string_pattern_mismatch" and (forms := _FORMS.get(str(fault["loc"][0]))):
        return f"invalid value: write {forms}"
    return fault["msg"].removeprefix("Value error, ")


def _warning(variable: str) -> str:
    from graphweft_contracts.nearest import nearest  # for a misspelled name only

    near = nearest(as_field(variable), Settings.model_fields.keys() | _NO_SETTINGS)
    hint = f"; did you mean {as_variable(near)!r}?" if near else ""
    return f"unknown environment variable {variable!r} is ignored{hint}"


def _unknown(where: str, name: str, known: Collection[str], spell: Callable[[str], str]) -> str:
    from graphweft_contracts.nearest import nearest

    near = nearest(name, known)
    hint = f"did you mean {spell(near)!r}?" if near else f"known: {', '.join(sorted(map(spell, known)))}"
    return f"{where}; {hint}"
