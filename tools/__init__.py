"""What developers run to write the files that are generated from models. Nothing that is installed needs it."""
