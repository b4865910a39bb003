"""Measures what a memory finds and shows, by questions whose answers are known."""
