"""`python -m samplehold ...`, the same as the command `samplehold`."""

from .cli.app import app

if __name__ == "__main__":
    app()
