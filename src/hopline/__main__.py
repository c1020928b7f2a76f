"""`python -m hopline`: the command line."""

from hopline.cli import main

if __name__ == "__main__":
    main()
