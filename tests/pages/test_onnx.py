"""The line of *When training fails* that writes an ONNX file keeps its word.

A test does what the page cannot: Colab has neither onnxscript nor ONNX Runtime.
"""

import re
import subprocess
import sys

import pages

PAGE = pages.NOTEBOOKS / "debugging_torch.py"
FILE = """
import sys

import numpy as np
import onnxruntime
import torch

sys.path.insert(0, {notebooks!r})
from helpers.torch import SequenceClassifier


def batch(n):
    x, real = torch.randn(n, 7, 5), torch.ones(n, 7, dtype=torch.bool)
    real[1, 3:] = False
    return x, real


sizes = {{"n_blocks": 2, "n_heads": 3, "f": 11, "max_length": 7}}
model = SequenceClassifier(5, 12, 4, **sizes).eval()
rows = {{0: torch.export.Dim("b")}}
shapes = {{"x": rows, "real": rows}}
program = torch.export.export(model, batch(2), dynamic_shapes=shapes)
{line}
x, real = batch(3)
session = onnxruntime.InferenceSession("reader.onnx")
(found,) = session.run(None, {{"x": x.numpy(), "real": real.numpy()}})
np.testing.assert_allclose(found, model(x, real).detach(), atol=1e-5)
"""


def test_the_onnx_file_gives_the_same_numbers(tmp_path):
    """For a padded batch, of another size than the one it was exported with."""
    text = "\n".join(c.source for c in pages.read_py(PAGE) if c.kind == "markdown")
    (line,) = re.findall(r"```python\n(.*onnx.*)\n```", text)
    source = FILE.format(notebooks=str(pages.NOTEBOOKS), line=line)
    (tmp_path / "file.py").write_text(source)
    command = [sys.executable, "-I", "file.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reader.onnx").stat().st_size > 0
