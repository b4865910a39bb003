"""Microsoft Agent Framework: events of agents and workflows, and context in the instructions of each run."""

from graphweft_runtimes.agent_framework.adapter import AgentFrameworkAdapter

__all__ = ("AgentFrameworkAdapter",)
