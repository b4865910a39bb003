"""The protocols that the engine and the responder work through, with their promises. Drivers implement them."""
