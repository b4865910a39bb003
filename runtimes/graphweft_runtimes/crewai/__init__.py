"""The adapter for crews and agents of CrewAI. Importing it does not import CrewAI; making one does."""

from graphweft_runtimes.crewai.adapter import CrewAIAdapter

__all__ = ("CrewAIAdapter",)
