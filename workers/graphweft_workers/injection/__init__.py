"""From a context request to its reply, before the deadline: match, fetch, rank, pack, reply; see ``pipeline``."""
