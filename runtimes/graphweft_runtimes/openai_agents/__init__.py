"""OpenAI Agents SDK (``agents``): events of runs, turns and tools, and context in the instructions of each turn."""

from graphweft_runtimes.openai_agents.adapter import OpenAIAgentsAdapter

__all__ = ("OpenAIAgentsAdapter",)
