"""``python -m specbench`` is the ``specbench`` command."""

from specbench.cli.app import main

if __name__ == "__main__":
    main()
