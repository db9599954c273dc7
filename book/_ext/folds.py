"""Sphinx extension: folds code cells by their kind, which their tag says.

The line that unfolds a check or an experiment is its own first line, a comment.
"""

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from pages import FOLDS


class FoldCells(SphinxPostTransform):
    """Marks cells for the transform of MyST-NB that folds, which runs next."""

    default_priority = 198

    def run(self, **_):
        for cell in self.document.findall(nodes.container):
            tags = [name.removeprefix("tag_") for name in cell.get("classes", [])]
            kind = next((tag for tag in tags if tag in FOLDS), None)
            if cell.get("nb_element") != "cell_code" or kind is None:
                continue
            first = cell.astext().partition("\n")[0].removeprefix("# ")
            cell["hide_mode"], prompt = FOLDS[kind]
            cell["prompt_show"] = prompt.format(first.removeprefix("Experiment: "))
            cell["prompt_hide"] = cell["prompt_show"].replace("Show", "Hide", 1)


def setup(app):
    app.add_post_transform(FoldCells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
