"""Faults that are injected while a server is under load; each undoes itself."""
