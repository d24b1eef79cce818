"""Two-tower recommenders: from raw interactions to a served model.

Importing this package is cheap: each part imports what it needs.
"""

__version__ = "0.1.0"
