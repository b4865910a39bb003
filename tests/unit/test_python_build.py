"""What ``graphweft doctor`` and the benchmarks say of the build of Python."""

from __future__ import annotations

import pytest

from graphweft_workers.doctor import check_python
from graphweft_workers.support.python_build import PythonBuild


@pytest.mark.parametrize(
    ("options", "prefix", "text", "slow"),
    [
        ("'--enable-shared'", "/opt/python", "built without PGO and LTO", True),
        ("'--enable-optimizations' '--with-lto'", "/opt/python", "built with PGO and LTO", False),
        ("'--enable-optimizations' '--with-lto=thin'", "/usr/local", "built with PGO and LTO", False),
        ("'--enable-optimizations' '--with-lto=no'", "/opt/python", "built with PGO only", False),
        ("'--with-lto'", "/opt/python", "built with LTO only", True),
        ("'--prefix=/usr'", "/usr", "a build that does not say how it was optimized", False),  # as Debian's
        ("'--enable-optimizations' '--with-lto'", "/usr", "built with PGO and LTO", False),  # as Fedora's
        (None, "C:\\Python", "a build that does not say how it was optimized", False),
    ],
)
def test_a_build_says_how_it_was_optimized(options: str | None, prefix: str, text: str, slow: bool) -> None:
    build = PythonBuild.of(options, prefix)
    assert (str(build), build.is_slow) == (text, slow)


def test_doctor_says_that_a_build_is_slow() -> None:
    slow = check_python("3.13.0", PythonBuild(profile_guided=False, link_time=False))
    assert slow.state == "ok"  # nothing fails
    assert slow.found.startswith("3.13.0, built without PGO and LTO: workers take up to 1.4 times the CPU")
    quick = check_python("3.13.0", PythonBuild(profile_guided=True, link_time=True))
    assert quick.found == "3.13.0, built with PGO and LTO"
