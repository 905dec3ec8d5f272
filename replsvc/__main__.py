"""`python -m replsvc` is the command line."""

from replsvc.cli import main

if __name__ == "__main__":
    main()
