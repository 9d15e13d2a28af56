"""Models that others published: where they are, what their folders hold, and checkpoints made into such folders.

Knows nothing of who serves them, of how a graph runs, or of any page.
"""
