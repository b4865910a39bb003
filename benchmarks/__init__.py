"""Measurements of the engine against what stands beside it: ``make bench``, or ``python -m benchmarks --help``."""
