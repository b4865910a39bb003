"""What people and programs are shown, as values: each ability returns one report, and every edge shows the same.

Nothing here knows a terminal, a browser or a command.
"""
