"""What a process can be: each role, how it starts, serves and ends."""
