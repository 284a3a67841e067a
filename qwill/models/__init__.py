"""Models, written to be read. `qwen3.py` is the dense family; nothing here knows scheduling, files or text."""
