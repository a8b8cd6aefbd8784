"""`python -m bot` is `verl-e2e`."""

from verl_e2e.cli import main

if __name__ == "__main__":
    main()
