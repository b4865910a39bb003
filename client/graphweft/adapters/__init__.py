"""Adapters: what makes events of a runtime's own callbacks, and puts context into its prompts.

Importing this package imports no runtime; each adapter is a module with an extra of the same name.
"""
