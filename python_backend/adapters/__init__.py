"""Adapters at rest: their names, what makes one safe to load, and where they lie."""
