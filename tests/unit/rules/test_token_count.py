from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_rules import count_characters, token_counter


def test_four_characters_are_a_token() -> None:
    assert [count_characters("x" * length) for length in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert token_counter("chars") is count_characters


@pytest.mark.parametrize("name", ["", "words", "tiktoken", "tiktoken:", "Chars", "o200k_base"])
def test_an_unknown_counter_says_what_there_is(name: str) -> None:
    with pytest.raises(InvalidSettings, match=r"is unknown: write 'chars', or 'tiktoken:o200k_base'") as caught:
        token_counter(name)
    assert repr(name) in str(caught.value)


def test_a_package_that_is_not_there_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(InvalidSettings, match=r"needs tiktoken: pip install 'graphweft\[tiktoken\]'"):
        token_counter("tiktoken:o200k_base")


def test_another_package_that_is_not_there_is_no_matter_of_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tiktoken.py").write_text("import no_such_package_at_all")
    monkeypatch.delitem(sys.modules, "tiktoken", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        token_counter("tiktoken:o200k_base")


def test_an_unknown_encoding_is_named_with_the_known_ones() -> None:
    pytest.importorskip("tiktoken")
    with pytest.raises(
        InvalidSettings, match=r"no model 'o200k' \(did you mean 'o200k_base'\?\): write one of .*cl100k"
    ):
        token_counter("tiktoken:o200k")


def test_an_encoding_that_cannot_be_fetched_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(
        "HTTPS_PROXY", "http://127.0.0.1:1"
    )  # nobody listens: refused at once, with a network or without
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    with pytest.raises(
        InvalidSettings, match=r"'o200k_base' cannot be loaded \(ProxyError: .*TIKTOKEN_CACHE_DIR=FOLDER"
    ):
        token_counter("tiktoken:gpt-4o")


def test_a_model_is_counted_by_its_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257}
    special = {"<|endoftext|>": 258}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\s+(?!\S)|\s+|\S+", mergeable_ranks=ranks, special_tokens=special)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {"o200k_base": encoding})
    count = token_counter("tiktoken:gpt-4o")
    assert count is not token_counter("chars")
    assert (count(""), count("the"), count("the th")) == (0, 1, 3)
    # Names of special tokens in a text are text; they are an error for tiktoken's plain `encode`.
    assert count("<|endoftext|>") == len("<|endoftext|>")
    # tiktoken panics over so many blanks at once.
    assert count(" " * 1_000_000) == 1_000_000
