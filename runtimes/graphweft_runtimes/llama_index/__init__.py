"""The adapter for agents of LlamaIndex. Importing it does not import LlamaIndex; making one does."""

from graphweft_runtimes.llama_index.adapter import LlamaIndexAdapter

__all__ = ("LlamaIndexAdapter",)
