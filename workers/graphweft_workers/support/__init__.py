"""Small tools of all folders: logs, timing, tasks, files. They know nothing of graphs and events."""
