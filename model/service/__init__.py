"""Requests served: what a form says, who runs the graph, for how long and on what, and what is kept of a video.

Knows nothing of Gradio; the generator runs without it.
"""
