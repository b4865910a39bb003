"""The adapter for crews and agents of CrewAI. Importing it does not import CrewAI; making one does."""

from graphweft.adapters.crewai.adapter import CrewAIAdapter

__all__ = ("CrewAIAdapter",)
