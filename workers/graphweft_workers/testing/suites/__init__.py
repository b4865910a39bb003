"""The suites of the ports, for pytest: what the engine relies on in a driver, against its real server.

Derive a class whose name begins with ``Test`` from the suite of a port, and give it the fixture ``kit``.
"""

from pkgutil import iter_modules

from graphweft_workers.support.optional_dependencies import naming_extra

with naming_extra("a suite of the ports", "testing", "pytest", "pytest_asyncio", "hypothesis"):
    import hypothesis as hypothesis
    import pytest
    import pytest_asyncio as pytest_asyncio

# A failed assertion shows its values, as in a module of tests.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
