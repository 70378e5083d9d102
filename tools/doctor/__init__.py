"""What stands in the way of serving on this machine, from these settings."""
