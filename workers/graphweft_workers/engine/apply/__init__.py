"""Writes an app's events into its graph exactly once; the states of an app; what is not ordinary about a graph."""
