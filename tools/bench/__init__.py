"""``tools bench``: measurements in process. A scenario is a module with ``run(options)``."""
