"""The only importer of ``pb_utils``: Triton's requests and responses to and from our classes.

Triton adds ``Tensor``, ``TritonError`` and the rest to the module after ``model.py`` has been
imported, so nothing of it is touched at import time.
"""
