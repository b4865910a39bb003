"""Fetch and make what servers need, before tests with their limits of time begin: ``python -m tests.services.prepare``.

Once it is there this takes no time. What is missing is said here, and again by the tests that need it.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.services import kafka, neo4j, node


def main() -> None:
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(kafka.make_archive), pool.submit(neo4j.make_archive), pool.submit(node.packages)]:
            try:
                done.result()
            except (pytest.skip.Exception, pytest.fail.Exception) as reason:
                print(reason, file=sys.stderr)


if __name__ == "__main__":
    main()
