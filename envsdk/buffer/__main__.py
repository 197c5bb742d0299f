import sys

from envsdk.buffer.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
