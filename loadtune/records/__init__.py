"""The frozen dataclasses that cross a folder's border. `None` means not measured; 0 means measured zero. Units are
suffixes: ``_s`` seconds, ``_bytes``, ``_per_s``, ``_fraction`` 0 to 1.
"""
