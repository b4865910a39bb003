"""Which rule set is active at each place of the log, and which ones the bus has lost."""
