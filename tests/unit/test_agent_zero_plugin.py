"""The plugin in a folder of Agent Zero: what is written, kept, taken away and refused."""

from __future__ import annotations

import json
import pkgutil
import re
from pathlib import Path

import pytest
import yaml
from tests.services.agent_zero import make_root
from typer.testing import CliRunner

from graphweft.adapters import agent_zero
from graphweft.adapters.agent_zero import DEFAULTS, AgentZeroPlugin
from graphweft.adapters.agent_zero.installation import install, plugin_files, uninstall
from graphweft_contracts import InvalidSettings
from graphweft_workers.cli import app


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "a0")


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_what_agent_zero_reads() -> None:
    files = plugin_files()
    assert yaml.safe_load(files["plugin.yaml"])["name"] == "graphweft"
    assert yaml.safe_load(files["default_config.yaml"]) == DEFAULTS
    assert "{{graph}}" in files["prompts/agent.system.graphrag.md"]
    assert "extensions/python/message_loop_prompts_after/_80_graphrag.py" in files
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            [method] = re.findall(r'getattr\(plugin, "(\w+)", None\)', text)
            assert callable(getattr(AgentZeroPlugin, method)), name
    assert len([text for text in files.values() if "print(" in text]) == 1


def test_a_second_time_nothing_is_written(root: Path) -> None:
    first = install(root)
    assert set(first.written) == set(plugin_files())
    before = tree(root)
    second = install(root)
    assert (second.written, second.kept, set(second.unchanged)) == ((), (), set(first.written))
    assert tree(root) == before


def test_it_goes_without_a_trace(root: Path) -> None:
    before = tree(root)
    install(root)
    done = uninstall(root)
    assert set(done.removed) == set(plugin_files())
    assert tree(root) == before
    assert not (root / "usr/plugins/graphweft").exists()
    assert uninstall(root).removed == ()


def test_what_somebody_changed_or_added_is_kept(root: Path) -> None:
    folder = install(root).folder
    prompt = folder / "prompts/agent.system.graphrag.md"
    prompt.write_text("mine {{graph}}")
    (folder / "config.json").write_text("{}")
    for _ in range(2):
        done = install(root)
        assert (done.written, done.kept) == ((), ("prompts/agent.system.graphrag.md",))
    assert uninstall(root).kept == ("config.json", "prompts/agent.system.graphrag.md")
    assert prompt.read_text() == "mine {{graph}}"
    assert (folder / "config.json").exists()


def test_force_writes_over_it(root: Path) -> None:
    prompt = install(root).folder / "prompts/agent.system.graphrag.md"
    prompt.write_text("mine")
    assert install(root, force=True).written == ("prompts/agent.system.graphrag.md",)
    assert prompt.read_text() == plugin_files()["prompts/agent.system.graphrag.md"]


def test_a_link_to_somebodys_file_is_not_written_through(root: Path, tmp_path: Path) -> None:
    mine, missing = tmp_path / "mine.yaml", tmp_path / "missing.yaml"
    mine.write_text("precious")
    folder = install(root).folder
    for name, target in (("plugin.yaml", mine), ("default_config.yaml", missing)):
        (folder / name).unlink()
        (folder / name).symlink_to(target)
    assert set(install(root).kept) == {"plugin.yaml", "default_config.yaml"}
    assert set(install(root, force=True).written) == {"plugin.yaml", "default_config.yaml"}
    assert (mine.read_text(), missing.exists()) == ("precious", False)
    assert (folder / "plugin.yaml").read_text() == plugin_files()["plugin.yaml"]


def test_what_was_interrupted_is_finished(root: Path) -> None:
    """Written by an installation that was killed before it could say so: nothing there is somebody else's."""
    folder = install(root).folder
    (folder / ".graphweft.json").unlink()
    (folder / "default_config.yaml").unlink()
    assert install(root).written == ("default_config.yaml",)
    assert set(uninstall(root).removed) == set(plugin_files())


@pytest.mark.parametrize("place", ["~nobody-of-this-name/a0", "loop", "a\0b"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InvalidSettings, match="invalid path"):
        install(tmp_path / place if place == "loop" else Path(place))


def test_a_file_in_the_place_of_the_folder_is_refused(root: Path) -> None:
    place = root / "usr/plugins/graphweft"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    with pytest.raises(InvalidSettings, match="is a file, expected a folder"):
        install(root, force=True)
    assert uninstall(root).removed == ()
    assert place.read_text() == "mine"


def test_files_of_an_earlier_version_are_brought_up_to_date(root: Path) -> None:
    folder = install(root).folder
    old = folder / "extensions/python/monologue_end/_40_graphweft.py"
    gone = folder / "extensions/python/monologue_end/_30_graphweft.py"
    for path in (old, gone):
        path.write_text("# an earlier version")
    manifest = json.loads((folder / ".graphweft.json").read_text())
    from hashlib import sha256

    digest = sha256(b"# an earlier version").hexdigest()
    for path in (old, gone):
        manifest[path.relative_to(folder).as_posix()] = digest
    (folder / ".graphweft.json").write_text(json.dumps(manifest))
    assert install(root).written == ("extensions/python/monologue_end/_40_graphweft.py",)
    assert not gone.exists()


def test_a_manifest_leads_to_nothing_outside(root: Path) -> None:
    from hashlib import sha256

    folder = install(root).folder
    digest = sha256(b"").hexdigest()
    names = {"../../../agent.py": digest, str(root / "agent.py"): digest}
    (folder / ".graphweft.json").write_text(json.dumps(names))
    uninstall(root)
    assert (root / "agent.py").exists()


def test_another_plugin_of_the_name_is_refused(root: Path) -> None:
    other = root / "usr/plugins/graphweft/plugin.yaml"
    other.parent.mkdir(parents=True)
    other.write_text("name: graphweft")
    with pytest.raises(InvalidSettings, match="is not this plugin: move it away"):
        install(root)
    assert other.read_text() == "name: graphweft"


def test_a_folder_that_is_no_agent_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"is not Agent Zero.*agent\.py.*/a0 in its container"):
        install(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_zero_without_plugin_folders_is_told(tmp_path: Path) -> None:
    for name in ("agent.py", "python/helpers/extension.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises(InvalidSettings, match="too old for plugins"):
        install(tmp_path)


def test_the_command_says_what_it_wrote(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = CliRunner().invoke
    first = run(app, ["agent-zero", "install", str(root)])
    assert first.exit_code == 0
    assert f"wrote {root / 'usr/plugins/graphweft/plugin.yaml'}" in first.output
    assert "GRAPHRAG_ENABLED=true" in first.output
    found = json.loads(run(app, ["agent-zero", "install", str(root), "--json"]).output)
    assert (found["folder"], found["written"], found["rules"]) == (str(root / "usr/plugins/graphweft"), [], [])
    assert (tmp_path / "here/workflows/AgentZero/graph_injection.yaml").is_file()
    assert "is up to date" in run(app, ["agent-zero", "install", str(root)]).output
    gone = json.loads(run(app, ["agent-zero", "uninstall", str(root), "--json"]).output)
    assert set(gone["removed"]) == set(plugin_files())
    refused = run(app, ["agent-zero", "install", str(root / "helpers")])
    assert refused.exit_code == 2


def test_no_module_of_the_package_hides_the_plugin_object() -> None:
    """Importing a submodule sets an attribute of its name on the package."""
    assert isinstance(agent_zero.plugin, AgentZeroPlugin)
    names = {module.name for module in pkgutil.iter_modules(agent_zero.__path__)}
    assert not names & set(agent_zero.__all__)
