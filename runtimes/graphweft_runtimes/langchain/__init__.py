"""LangChain 1.x agents and LangGraph graphs: their events, and context in the system message of each turn."""

from graphweft_runtimes.langchain.adapter import LangChainAdapter

__all__ = ("LangChainAdapter",)
