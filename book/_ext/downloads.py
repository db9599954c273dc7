"""Sphinx extension: one file to take along, of each framework.

``{model-file}`jax` `` is a link to ``model_jax.py``, and so for the twin. Both are made
at the end of each build in which a page links to one, from what the chapters build.
"""

import one_file
from docutils import nodes
from sphinx.util.docutils import SphinxRole

KEY = "model-file"  # among the metadata of a page that links to one


class ModelFile(SphinxRole):
    """A link to the file of a framework."""

    def run(self):
        self.env.metadata[self.env.docname][KEY] = True
        name, up = f"model_{self.text}.py", "../" * self.env.docname.count("/")
        link = f'<a class="download" download href="{up}_downloads/{name}">'
        text = f'{link}<code class="docutils literal notranslate">{name}</code></a>'
        return [nodes.raw("", text, format="html")], []


def write_model_files(app, error):
    used = any(KEY in about for about in app.env.metadata.values())
    if used and error is None and app.builder.format == "html":
        folder = app.outdir / "_downloads"
        folder.mkdir(exist_ok=True)
        for side in one_file.pages.SIDES:
            text = one_file.one_file(side)
            (folder / f"model_{side}.py").write_text(text, encoding="utf-8")


def setup(app):
    app.add_role("model-file", ModelFile())
    app.connect("build-finished", write_model_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
