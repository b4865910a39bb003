"""Adapters: they turn the callbacks of agent runtimes into events, and put context into prompts.

Importing this package imports no runtime. Each adapter is a module with an extra of the same name.
"""
