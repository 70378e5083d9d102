"""``python -m tools sign``, ``verify``, ``signing-keys``: who vouches for an adapter."""
