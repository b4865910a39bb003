"""The console: a web page that shows what happens. It reads through the ports, and writes only if it is allowed to."""
