"""What others test with: the suites of the ports for the author of a driver, and ``graphweft.testing`` for rules.

The suites need the extra ``testing``.
"""

from typing import TYPE_CHECKING

from graphweft_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from graphweft_workers.testing.suites.bus_kit import BusFeatures, BusKit
    from graphweft_workers.testing.suites.bus_suite import BusSuite
    from graphweft_workers.testing.suites.graph_kit import GraphFeatures, GraphKit
    from graphweft_workers.testing.suites.graph_suite import GraphSuite
    from graphweft_workers.testing.suites.request_kit import RequestFeatures, RequestKit
    from graphweft_workers.testing.suites.request_suite import RequestSuite
    from graphweft_workers.testing.suites.search_kit import SearchKit
    from graphweft_workers.testing.suites.search_suite import SearchSuite

__all__ = (
    "BusFeatures",
    "BusKit",
    "BusSuite",
    "GraphFeatures",
    "GraphKit",
    "GraphSuite",
    "RequestFeatures",
    "RequestKit",
    "RequestSuite",
    "SearchKit",
    "SearchSuite",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graphweft_workers.testing.suites.bus_kit": ("BusFeatures", "BusKit"),
        "graphweft_workers.testing.suites.bus_suite": ("BusSuite",),
        "graphweft_workers.testing.suites.graph_kit": ("GraphFeatures", "GraphKit"),
        "graphweft_workers.testing.suites.graph_suite": ("GraphSuite",),
        "graphweft_workers.testing.suites.request_kit": ("RequestFeatures", "RequestKit"),
        "graphweft_workers.testing.suites.request_suite": ("RequestSuite",),
        "graphweft_workers.testing.suites.search_kit": ("SearchKit",),
        "graphweft_workers.testing.suites.search_suite": ("SearchSuite",),
    },
)
