"""Neo4j as the graph store."""
