"""The services of graphweft.

================  ======================================================================================
``ports``         protocols and their promises
``drivers``       one folder per product that implements a port
``engine``        events to matched rules, to a plan, to the graph, exactly once and in order
``injection``     context requests to replies, within their deadlines
``retrieval``     search by words and vectors; ``embedding`` makes the vectors
``features``      memory, episodes and graphrag, built on the engine
``gateway``       the HTTP gateway; ``mcp`` the MCP server; ``imports`` recorded runs of other tools
``roles``         what a process can be, put together from all of these
``doctor``        checks of an installation; ``cli`` the ``graphweft`` command
================  ======================================================================================
"""
