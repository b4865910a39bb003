"""How long to wait before the next attempt."""

from __future__ import annotations

import random


def backoff_s(
    first_s: float, attempt: int, *, longest_s: float = 5.0, spread: tuple[float, float] = (0.5, 1.0)
) -> float:
    """Return the seconds to wait after failed attempt number ``attempt``, counted from 1.

    The wait is ``first_s`` after the first failure, doubles with each further one up to ``longest_s``, and is then
    multiplied by a random factor out of ``spread``, so that workers do not retry in step.
    """
    return min(first_s * 2.0 ** min(attempt - 1, 10), longest_s) * random.uniform(*spread)
