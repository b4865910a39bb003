"""Reads the log: leases, positions, copies, signatures; events decoded and matched, a range at a time."""
