"""`python -m fedptr`."""

import sys

from fedptr.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
