"""In a real kernel: figures and tables show where they are the last line, once, and fits show how far they are."""

import subprocess
import sys

import pytest

nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")

pytestmark = pytest.mark.slow

MODEL = """
import samplehold as sh
model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
x = [0.1, -0.2, 0.0, 5.1, 4.8, 5.0, 5.2, 0.1, 0.0, -0.1]
fit = model.fit(x, restarts=1, progress=False)
"""


def executed(*cells: str) -> list[list[dict]]:
    """What each cell of a new notebook has put out, in a new kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def pictures(outputs: list[dict]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture(scope="module")
def outputs() -> list[list[dict]]:
    return executed(
        MODEL,
        "fit.plot(x)",
        "figure = fit.plot()",
        "fit.forecast(horizon=3).plot()",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nfit.plot(x)",
        "fit.plot(x).savefig('/dev/null', format='png')\nplt.get_fignums()",
        "model",
        "fit",
        "fit.summary()",
        "fit.forecast(horizon=3)",
    )


def test_a_figure_as_the_last_line_shows_once_whether_pyplot_is_there_or_not(outputs):
    assert [pictures(each) for each in outputs[:6]] == [0, 1, 0, 1, 1, 0]
    assert [len(each) for each in outputs[1:6]] == [1, 0, 1, 1, 1]  # and nothing beside it
    assert outputs[5][0]["data"]["text/plain"] == "[]"


@pytest.mark.parametrize(
    ("cell", "said"), [(6, "no values yet"), (7, "Fit by em"), (8, "log-likelihood"), (9, "state_0")]
)
def test_tables_show_as_tables(outputs, cell, said):
    (output,) = outputs[cell]
    assert said in output["data"]["text/html"]
    assert "<table" in output["data"]["text/html"]
    assert len(output["data"]["text/plain"]) < 4000


def test_a_fit_shows_how_far_it_is_and_clears_up_behind_it():
    (_, bar, quiet, short) = executed(
        "from samplehold.switching.progress import INTERVAL, Progress\n"
        "import time, IPython.display as d\n"
        "seen, true = [], d.DisplayHandle.update\n"
        "d.DisplayHandle.update = lambda self, data, **k: (seen.append(data['text/plain']), true(self, data, **k))[1]",
        "with Progress('EM, 8 restarts', 3, True) as shown:\n"
        "    for step in (1, 2, 3):\n"
        "        time.sleep(1.2 * INTERVAL)\n"
        "        shown(step, -12.5)\n"
        "print(seen)",
        "with Progress('EM', 3, False) as shown:\n    time.sleep(1.2 * INTERVAL)\n    shown(1, -12.5)",
        "with Progress('EM', 3, True) as shown:\n    shown(1, -12.5)",
    )
    line, printed = bar
    assert line["data"] == {"text/plain": "", "text/html": ""}  # a browser shows no box
    assert "EM, 8 restarts" in printed["text"]
    assert "2/3" in printed["text"]
    assert "objective -12.5" in printed["text"]
    assert quiet == short == []


def test_a_script_opens_no_window_and_prints_nothing():
    program = f"{MODEL}\nfit.plot(x)\nimport sys\nassert 'matplotlib.pyplot' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == ""
