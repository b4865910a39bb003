"""Microsoft Agent Framework: events of agents and workflows, and context in the instructions of each run."""

from graphweft.adapters.agent_framework.adapter import AgentFrameworkAdapter

__all__ = ("AgentFrameworkAdapter",)
