"""A bus on one SQLite file, as another package may add it: scheme ``sqlite``, URL ``sqlite:///path/of/the/file``.

Processes of one machine share the file. It is slow on purpose: it polls the file where a server would call. What the
methods promise stands in ``graphweft_workers.ports`` and ``graphweft.transport``.
"""
