"""``python -m tools admin``: an operator's hand on a running server."""
