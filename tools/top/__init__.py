"""A live view of a server, from its metrics endpoint alone."""
