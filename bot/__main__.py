"""`python -m bot` is `verl-e2e`."""

from bot.cli import main

if __name__ == "__main__":
    main()
