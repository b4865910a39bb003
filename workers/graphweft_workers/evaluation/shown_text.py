"""The text of a reply as measures see it: the rows in it, and what in it nobody said. Pure."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

from graphweft_contracts.prompt_text import inside
from graphweft_rules.output.memory_block import NOTHING_CLOSE
from graphweft_workers.evaluation.questions import one_line

_DASH: Final = "- "
_WHO: Final = re.compile(r'(?:\w+ )?"[^"]{1,60}": |[^:\s][^:]{0,59}: ')
"""The author before a text."""
_BEHIND: Final = re.compile(r"(?: \((?:since|until) [^()]*\)| \(\d+ times, last on this day\))+$")
_LABEL: Final = re.compile(
    r"#+ .*|Known:|Today is .*|Without a date:|\w+day \d{4}-\d{2}-\d{2}.*:|(?:\[[^\]]*\] ?)+|GRAPHRAG_CONTEXT_BLOCK_\w+"
)
"""A line that nobody said: a heading, a day, the columns of a result."""


class ShownText:
    """The text of a reply."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self._lines = [line for line in inside(text).splitlines() if line.strip()]

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The lines that somebody said, with the author's name, without a dash."""
        said = [line for line in self._lines if line != NOTHING_CLOSE and not _LABEL.fullmatch(line.strip())]
        return tuple(one_line(_BEHIND.sub("", line.removeprefix(_DASH))) for line in said)

    @property
    def tells_nothing(self) -> bool:
        """Whether it is empty, or says that none of it is close to the question."""
        return not self.rows or NOTHING_CLOSE in self._lines

    @property
    def labels(self) -> float | None:
        """The share of the text that nobody said; None for an empty text."""
        if not self.text:
            return None
        said = sum(len(_WHO.sub("", row, count=1) if _WHO.match(row) else row) for row in self.rows)
        return max(0.0, 1 - said / len(self.text))
