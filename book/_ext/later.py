"""Sphinx extension: parts of a page that need all other pages, and are filled last."""

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

FILL = {}  # by the name of a part: ``fill(transform, node, *arguments)``, its nodes


class Later(nodes.General, nodes.Element):
    """Stands where the part will be, until all pages are read and executed."""


class Part(SphinxDirective):
    """``{name} argument``."""

    optional_arguments = 1

    def run(self):
        self.env.note_reread()  # any page may have changed
        return [Later(name=self.name, args=self.arguments, where=self.get_location())]


class FillParts(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(Later)):
            node.replace_self(FILL[node["name"]](self, node, *node["args"]))


def add_part(app, name, fill):
    """Add the directive ``{name}``."""
    FILL[name] = fill
    app.add_directive(name, Part)


def setup(app):
    app.add_node(Later)
    app.add_post_transform(FillParts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
