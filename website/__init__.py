"""The documentation site: ``python -m website`` writes it to ``build/site`` (``make docs``).

The pages are those of ``docs/``, some of the root, and those that are written from code: commands, settings, rules,
events, the Python API and HTTP.
"""
