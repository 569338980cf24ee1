"""`python -m pamx.cli`: the same as the `pamx` script."""

from pamx.cli import main

if __name__ == "__main__":
    main()
