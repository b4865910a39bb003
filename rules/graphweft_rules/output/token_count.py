"""Token counting: a fast estimate, or the tokenizer of a model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from graphweft_contracts import InvalidSettings
from graphweft_contracts.wire import did_you_mean

type TokenCounter = Callable[[str], int]
"""Returns the number of tokens of a text, 0 for the empty text. Never raises."""

_SLICE: Final = 100_000
"""Limit of characters in one call, because tiktoken 0.14 panics on a million blanks. Each slice may add a token."""


def count_characters(text: str) -> int:
    """Return a quarter of the characters, rounded up: a good estimate for English."""
    return (len(text) + 3) // 4


def token_counter(name: str) -> TokenCounter:
    """Return a counter by name: ``chars``, or ``tiktoken:`` and an encoding or a model (``tiktoken:gpt-4o``).

    Loads the encoding, possibly from the network, so call it when a service starts. Raises ``InvalidSettings`` if the
    name is unknown, tiktoken is not installed, or the encoding cannot be loaded.
    """
    if name == "chars":
        return count_characters
    kind, _, wanted = name.partition(":")
    if kind != "tiktoken" or not wanted:
        message = (
            f"the token counter {name!r} is unknown: write 'chars', or 'tiktoken:o200k_base' (an encoding or a model)"
        )
        raise InvalidSettings(message)
    return _tiktoken(name, wanted)


def _tiktoken(name: str, wanted: str) -> TokenCounter:
    try:
        # Type checks must pass without this optional dependency.
        tiktoken: Any = importlib.import_module("tiktoken")
    except ModuleNotFoundError as error:
        if error.name != "tiktoken":
            raise
        message = f"the token counter {name!r} needs tiktoken: pip install 'graphweft[tiktoken]'"
        raise InvalidSettings(message) from error
    known: list[str] = tiktoken.list_encoding_names()
    encoding_name = wanted
    if wanted not in known:
        try:
            encoding_name = tiktoken.encoding_name_for_model(wanted)
        except KeyError as error:
            near = did_you_mean(wanted, known)
            message = (
                f"the token counter {name!r}: tiktoken {tiktoken.__version__} knows no encoding and no model {wanted!r}"
                f"{near}: write one of {', '.join(known)}, or a model of OpenAI"
            )
            raise InvalidSettings(message) from error
    try:
        encode: Callable[[str], list[int]] = tiktoken.get_encoding(encoding_name).encode_ordinary
    except (OSError, ValueError) as error:  # no network, no such folder, a wrong file
        message = (
            f"the token counter {name!r}: the encoding {encoding_name!r} cannot be loaded ({type(error).__name__}: "
            f"{error}). tiktoken fetches it from the network once, into the folder TIKTOKEN_CACHE_DIR: where there is "
            "no network, fill that folder elsewhere and bring it along: TIKTOKEN_CACHE_DIR=FOLDER python -c "
            f"\"import tiktoken; tiktoken.get_encoding('{encoding_name}')\""
        )
        raise InvalidSettings(message) from error

    def count(text: str) -> int:
        return sum(len(encode(text[start : start + _SLICE])) for start in range(0, len(text), _SLICE))

    return count
