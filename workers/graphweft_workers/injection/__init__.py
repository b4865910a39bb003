"""From a context request to its reply, inside the budget: the responder (logic) and the request queue (Redis)."""
