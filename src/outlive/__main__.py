"""`python -m outlive` is the command `outlive`."""

from outlive.cli import main

if __name__ == "__main__":
    main()
