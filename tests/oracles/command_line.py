"""Commands as a person gives them, within this process."""

from samplehold.cli.app import app
from typer.testing import CliRunner, Result


def run(*words: object, status: int = 0) -> Result:
    """What a command prints, which ends with this status."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == status, done.output
    return done


def refused(*words: object) -> str:
    """The one line with which a command is refused."""
    error = run(*words, status=2).stderr
    assert error.count("\n") == 1
    return error
