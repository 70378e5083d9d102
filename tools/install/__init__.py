"""Parts of ``tools/setup.py``. Standard library only, and syntax a Python 3.8 can read, because an
older Python may have to find the newer one and say so."""
