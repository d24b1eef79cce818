import sys
from pathlib import Path

from recsys.cli import main

if __name__ == "__main__":
    # `python -m` adds the current folder, from which `recsys` imports no plugin either.
    if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parents[1]:
        del sys.path[0]
    main()
