"""Fetch and make what tests need, before their limits of time begin: ``python -m tests.services.prepare``.

Once it is there this takes no time. What is missing is said here, and again by the tests that need it. The environments
of agent runtimes are made with ``CI=true`` only, for those whose tests run; the tools from Go modules, which take many
minutes to build, with ``--soak`` only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.adapters import trials
from tests.services import go_tools, kafka, neo4j, node, runtime_environments


def main() -> None:
    soak = "--soak" in sys.argv
    unchanged = () if soak else tuple(name for name in trials.RUNTIMES if trials.unchanged_since(name))
    wanted = runtime_environments.everywhere() if os.environ.get("CI") else []
    environments = [name for name in wanted if name.replace("-", "_") not in unchanged]
    # The first of them are large downloads: two at once, beside the servers.
    with ThreadPoolExecutor() as pool, ThreadPoolExecutor(2) as two:
        made = [pool.submit(make) for make in (kafka.make_archive, neo4j.make_archive, node.packages)]
        if soak:
            made.append(pool.submit(go_tools.make))
        for done in [*made, *(two.submit(runtime_environments.make, name) for name in environments)]:
            try:
                done.result()
            except (pytest.skip.Exception, pytest.fail.Exception) as reason:
                print(reason, file=sys.stderr)
            except subprocess.CalledProcessError as error:
                print(f"an environment cannot be made:\n{error.stdout[-1500:]}", file=sys.stderr)


if __name__ == "__main__":
    main()
