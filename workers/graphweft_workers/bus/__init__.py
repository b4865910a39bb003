"""Reading events in order from partitions, and what belongs to it: one protocol, one driver a file."""
