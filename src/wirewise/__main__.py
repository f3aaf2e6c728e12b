"""`python -m wirewise`."""

from wirewise.cli import main

if __name__ == "__main__":
    main()
