"""The example of the page about Agent Zero, as it is printed there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

__all__ = ("BLOCK", "COMMANDS", "KNOWN", "QUESTION", "RULES")

_PAGE: Final = (Path(__file__).parents[2] / "docs/runtimes/agent-zero.md").read_text("utf-8")


def _block(language: str, holds: str) -> str:
    [text] = [text for text in re.findall(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL) if holds in text]
    return str(text)


RULES: Final = _block("yaml", "graphrag:")
KNOWN: Final = _block("json", "episode.add")
BLOCK: Final = _block("text", "# Facts of the graph")
QUESTION: Final = "What does Ann own?"
COMMANDS: Final = [
    shlex.split(line, comments=True)
    for text in re.findall(r"```sh\n(.*?)```", _PAGE, re.DOTALL)
    for line in text.splitlines()
    if "graphweft " in line
]
"""The commands of graphweft's, in order."""
assert f"*{QUESTION}*" in _PAGE
