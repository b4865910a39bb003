"""FalkorDB as the graph store."""
