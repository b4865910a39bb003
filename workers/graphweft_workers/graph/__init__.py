"""Graph stores: one protocol, one driver a file, and the digest of a graph's content."""
