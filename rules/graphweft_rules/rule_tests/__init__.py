"""Rule tests: the files ``*_test.yaml`` beside rules, as cases, and the comparison of a case with its outcome.

Everything here is pure, apart from ``folder``, which reads files. A worker's code makes the outcome.
"""
