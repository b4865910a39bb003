"""Agent Zero: the code behind the extensions of its plugin. ``installation`` writes the files that call it."""

from graphweft.adapters.agent_zero.adapter import BLOCK_END, BLOCK_START, DEFAULTS, PLUGIN, AgentZeroPlugin, plugin

__all__ = ("BLOCK_END", "BLOCK_START", "DEFAULTS", "PLUGIN", "AgentZeroPlugin", "plugin")
