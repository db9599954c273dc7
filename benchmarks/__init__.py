"""Training and generation of the book against the usual ways of writing them."""
