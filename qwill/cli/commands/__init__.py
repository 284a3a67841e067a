"""One file for each command: `qwill NAME` is NAME.py, whose `register(app)` adds the command's functions."""
