"""What operators ask of a running server."""
