"""Tests of a suite that a second server repeats in longer runs only."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

__all__ = ("repeats",)


def repeats[Class: type](suite: type, *names: str) -> Callable[[Class], Class]:
    """Mark tests that a class has from ``suite`` as ``long``, for this class alone."""

    def mark(class_: Class) -> Class:
        for name in names:
            setattr(class_, name, pytest.mark.long(_again(getattr(suite, name))))
        return class_

    return mark


def _again(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def again(*args: Any, **kwargs: Any) -> None:
        await test(*args, **kwargs)

    return again
