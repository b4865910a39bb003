"""Installs and removes the plugin's files in a folder of Agent Zero.

Rejected: keeping them as files of this package. They import Agent Zero's modules, so our checks could not read them,
and they differ only in a few words.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from graphweft.adapters.agent_zero import DEFAULTS, PLUGIN
from graphweft_contracts import InvalidSettings

_MANIFEST: Final = ".graphweft.json"
"""The digests of the written files. A file with another digest was changed by a user."""
_LINK: Final = "a link"
"""In place of a digest: a user made the link, because ``install`` makes none."""
_SIGNS: Final = ("agent.py", "helpers/extension.py", "helpers/plugins.py")
_OLD_SIGN: Final = "python/helpers/extension.py"

_EXTENSIONS: Final[Mapping[str, str]] = {
    "message_loop_prompts_after/_80_graphrag": "begin",
    "message_loop_prompts_after/_95_graphrag_context": "inject",
    "monologue_start/_50_graphweft": "start_turn",
    "monologue_end/_40_graphweft": "end_turn",
    "tool_execute_before/_05_graphweft": "start_tool",  # before _10_unmask_secrets
    "tool_execute_after/_90_graphweft": "end_tool",  # after _10_mask_secrets
    "chat_model_call_before/_90_graphweft": "start_model",
    "chat_model_call_after/_10_graphweft": "end_model",
    "_functions/agent/Agent/handle_exception/end/_99_graphweft": "handle_exception",
}
"""The method of ``AgentZeroPlugin`` that each extension calls. Agent Zero sorts a folder by file name."""

_EXTENSION: Final = '''\
"""Written by `graphweft agent-zero install`; the code is in the Python package graphweft."""

from helpers.extension import Extension

try:
    from graphweft.adapters.agent_zero import plugin
except Exception as error:  # an extension that cannot be imported would end the agent's message loop
    plugin = None
{say}

class Graphweft(Extension):
    {definition} execute(self, **kwargs):
        run = getattr(plugin, "{method}", None)  # an older package may lack it
        if run is not None:
            {wait}run(self.agent, **kwargs)
'''

_SAY: Final = """\
    print(f"graphweft: not usable in Agent Zero's Python ({type(error).__name__}): pip install graphweft")
"""
"""In one extension only, so that it is printed once."""

_PROMPT: Final = """\
# Facts of the graph

{{graph}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFiles:
    """The plugin's files by outcome. Paths are relative to ``folder``, with slashes."""

    folder: Path
    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Files that a user has changed."""
    removed: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("written", "unchanged", "kept", "removed")}
        return {"folder": str(self.folder), **lists}


def plugin_files() -> dict[str, str]:
    """Return the text of each file, by its path in the plugin's folder."""
    meta = {
        "name": PLUGIN,
        "title": "Graphweft",
        "description": "Facts of a knowledge graph beside the memories, and events of what agents do.",
        "version": _version(),
        "settings_sections": ["agent"],
        "per_project_config": True,
        "per_agent_config": True,
    }
    files = {
        "plugin.yaml": _yaml(meta),
        "default_config.yaml": _yaml(DEFAULTS),
        "prompts/agent.system.graphrag.md": _PROMPT,
    }
    for place, method in _EXTENSIONS.items():
        waits, says = method == "inject", method == "begin"
        text = _EXTENSION if says else _EXTENSION.replace(" as error", "")
        parts = {"definition": "async def" if waits else "def", "wait": "await " if waits else "", "method": method}
        for part, value in {**parts, "say": _SAY if says else ""}.items():
            text = text.replace(f"{{{part}}}", value)
        files[f"extensions/python/{place}.py"] = text
    return files


def install(root: Path, *, force: bool = False) -> InstalledFiles:
    """Install or update the plugin of the Agent Zero in ``root``. A second call writes nothing.

    Files that a user changed are kept, unless ``force`` is set. Raises ``InvalidSettings`` if ``root`` is not Agent
    Zero, if the folder belongs to another plugin, or if it is not writable.
    """
    folder = _folder(root)
    known = _manifest(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidSettings(f"{folder} is a file, expected a folder: move it away")
    if known is None and _is_foreign(folder) and not force:
        raise InvalidSettings(f"{folder} is not this plugin: move it away, or use --force to write into it")
    written: list[str] = []
    unchanged: list[str] = []
    kept: list[str] = []
    digests: dict[str, str] = {}
    with _writing(folder):
        for name, text in plugin_files().items():
            path, now = folder / name, _digest_of(folder / name)
            if now == _digest(text):
                unchanged.append(name)
            elif now is not None and not force and now != (known or {}).get(name):
                kept.append(name)
                digests[name] = (known or {}).get(name, "")
                continue
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                if now == _LINK:  # its target is not ours
                    path.unlink()
                path.write_text(text, "utf-8")
                written.append(name)
            digests[name] = _digest(text)
        for name in (known or {}).keys() - digests.keys():  # files of an earlier version
            _remove(folder, name, (known or {})[name])
        if known != digests:
            (folder / _MANIFEST).write_text(json.dumps(digests, indent=1) + "\n", "utf-8")
    return InstalledFiles(folder=folder, written=tuple(written), unchanged=tuple(unchanged), kept=tuple(kept))


def uninstall(root: Path) -> InstalledFiles:
    """Remove the files that ``install`` wrote, and empty folders. Files that a user changed or added are kept.

    Does nothing if the plugin is not installed. Raises ``InvalidSettings`` as ``install`` does.
    """
    folder = _folder(root)
    known = _manifest(folder)
    if known is None:
        return InstalledFiles(folder=folder)
    with _writing(folder):
        removed = [name for name, digest in known.items() if _remove(folder, name, digest)]
        (folder / _MANIFEST).unlink()
        for cache in list(folder.rglob("__pycache__")):
            for compiled in cache.glob("*.pyc"):
                compiled.unlink()
        for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # not empty
                inner.rmdir()
        kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        with contextlib.suppress(OSError):
            folder.rmdir()
    return InstalledFiles(folder=folder, removed=tuple(removed), kept=tuple(kept))


def _folder(root: Path) -> Path:
    try:
        root = root.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidSettings(f"invalid path {str(root)!r} ({error}): expected the folder of Agent Zero") from error
    missing = [name for name in _SIGNS if not (root / name).is_file()]
    if missing and (root / _OLD_SIGN).is_file():
        raise InvalidSettings(
            f"the Agent Zero in {root} is too old for plugins in usr/plugins: update it to 1.0 or later"
        )
    if missing:
        raise InvalidSettings(
            f"{root} is not Agent Zero, because it lacks {missing[0]}: expected the folder with agent.py and helpers, "
            "which is /a0 in its container"
        )
    return root / "usr" / "plugins" / PLUGIN


def _is_foreign(folder: Path) -> bool:
    """Return whether a file differs from those of ``install``; an interrupted ``install`` leaves none such."""
    ours = plugin_files()
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return any(name not in ours or _digest_of(folder / name) != _digest(ours[name]) for name in names)


def _manifest(folder: Path) -> dict[str, str] | None:
    """Return the digests by path, or None if the plugin is not installed."""
    try:
        found: Any = json.loads((folder / _MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    digests = cast("dict[str, Any]", found)
    return {name: str(digest) for name, digest in digests.items() if ".." not in PurePosixPath(name).parts}


def _remove(folder: Path, name: str, digest: str) -> bool:
    """Remove the file if it is unchanged; return whether it was removed."""
    if PurePosixPath(name).is_absolute() or _digest_of(folder / name) != digest:
        return False
    (folder / name).unlink()
    return True


@contextlib.contextmanager
def _writing(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidSettings(
            f"cannot write to {folder} ({error.strerror}): run this as its owner, or in Agent Zero's container"
        ) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of(path: Path) -> str | None:
    if path.is_symlink():
        return _LINK
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _yaml(values: Mapping[str, Any]) -> str:
    """JSON values are YAML."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())


def _version() -> str:
    try:
        return version("graphweft")
    except PackageNotFoundError:
        return "0"
