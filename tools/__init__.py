"""Commands for those who run, test and build the product: ``python -m tools --help``.

Nothing that serves a request imports this package.
"""
