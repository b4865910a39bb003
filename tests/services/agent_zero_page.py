"""The example of the page about Agent Zero, as it is printed there."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Final

__all__ = ("BLOCK", "COMMANDS", "FACTS", "KNOWN", "QUESTION", "RULES", "plain")

_PAGE: Final = (Path(__file__).parents[2] / "docs/runtimes/agent-zero.md").read_text("utf-8")


def _block(language: str, holds: str) -> str:
    [text] = [text for text in re.findall(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL) if holds in text]
    return str(text)


RULES: Final = (files("graphweft_workers") / "new_project/template/workflows/AgentZero/graph_injection.yaml").read_text(
    "utf-8"
)
"""Those that the installation writes."""
KNOWN: Final = _block("json", "episode.add")
BLOCK: Final = _block("text", "# Facts of the graph")


def plain(block: str) -> str:
    """Return a block without the date of the day and the digest of its text."""
    return re.sub(r"data-[0-9a-f]{16}|Today is .*", "", block.strip())


FACTS: Final = BLOCK.partition("GRAPHRAG_CONTEXT_BLOCK_START")[2].partition("GRAPHRAG_CONTEXT_BLOCK_END")[0]
QUESTION: Final = "What does Ann own?"
COMMANDS: Final = [
    shlex.split(line, comments=True)
    for text in re.findall(r"```sh\n(.*?)```", _PAGE, re.DOTALL)
    for line in text.splitlines()
    if "graphweft " in line
]
"""The commands of graphweft's, in order."""
assert f"*{QUESTION}*" in _PAGE
