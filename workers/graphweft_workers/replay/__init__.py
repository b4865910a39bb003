"""Work on the history of an app: replay of its log, and what is built from it."""
