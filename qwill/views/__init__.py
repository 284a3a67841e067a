"""Pictures of what happens inside, as objects: data to compute with, HTML for a notebook, PNG and SVG for a page.

Each file holds one picture and how it is made from a trace or a model. None of them changes what the engine does.
"""
