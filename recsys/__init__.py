"""Two-tower recommenders: from raw interactions to a served model.

Importing this package is cheap: each part imports what it needs.
"""

from recsys.parent import end_with_parent

__version__ = "0.1.0"

# A process of a run is bound to the one that started it, if it is to be, before the
# seconds that its imports take; nothing happens in any other.
end_with_parent()
