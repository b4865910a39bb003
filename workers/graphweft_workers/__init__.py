"""The side of graphweft that runs as services.

=============  ========================================================================================
``settings``   everything that can be set, from ``GRAPHWEFT_*`` and ``graphweft.yaml``
``bus``        reading events in order from partitions; dead letters; the Redis Streams driver
``graph``      applying writes once and reading; the FalkorDB driver; the digest of a graph's content
``mutation``   events -> matched rules -> plan -> graph -> commit
``injection``  request -> matched rules -> queries -> formatted reply, inside the budget
``imports``    recorded runs of other tools -> events
``embedded``   bus and graph in one local process; ``supervisor`` runs it with worker and responder, and ``readiness``
               says when they serve
``heartbeat``  each role's process says that it is alive; health checks read that
``cli``        the ``graphweft`` command
=============  ========================================================================================
"""
