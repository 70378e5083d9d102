"""``python -m tools simulate``: the server's admission over a simulated engine."""
