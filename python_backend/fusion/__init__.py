"""Several adapters in one answer."""
