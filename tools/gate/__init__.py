"""The gate of mode `auto`: trained from examples of prompts and the adapters they are for."""
