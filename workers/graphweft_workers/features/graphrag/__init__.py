"""Seed-Pin-Expand-Pack: facts of an app's graph that are near to what was recalled, or to what a question names."""
