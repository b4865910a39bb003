"""The archive: a copy of the log that outlives the bus, in a folder or an object store."""
