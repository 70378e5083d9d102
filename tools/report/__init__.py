"""Two configurations on the same trace, beside each other: figures, JSON, one page."""
