"""The adapter for Pydantic AI. Importing it does not import Pydantic AI; making one does."""

from graphweft_runtimes.pydantic_ai.adapter import PydanticAIAdapter

__all__ = ("PydanticAIAdapter",)
