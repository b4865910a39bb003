"""Tests of a suite that a second server repeats in longer runs only."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

__all__ = ("repeats",)


def repeats[Class: type](
    suite: type, *names: str, cases: Mapping[str, Sequence[str]] | None = None
) -> Callable[[Class], Class]:
    """Mark tests that a class has from ``suite`` as ``long``, for this class alone.

    Of those in ``cases``, the ones are marked that have one of the words in the id of their parameters.
    """

    def mark(class_: Class) -> Class:
        for name, words in {**dict.fromkeys(names, ()), **(cases or {})}.items():
            setattr(class_, name, pytest.mark.long(*words)(_again(getattr(suite, name))))
        return class_

    return mark


def _again(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def again(*args: Any, **kwargs: Any) -> None:
        await test(*args, **kwargs)

    return again
