"""Adapters of agent runtimes: they turn callbacks into events, and put context into prompts.

Importing this package imports no runtime. Each adapter is a module with an extra of the same name.
"""
