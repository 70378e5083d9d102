"""The engine: one protocol, vLLM behind it, and a fake for unit tests of our own logic."""
