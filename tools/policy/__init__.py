"""``tools policy``: what is wrong with a policy file, and which of its lines decides."""
