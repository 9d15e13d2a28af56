"""The generator: causal Wan transformer and VAE as one graph. Knows nothing of Gradio, spaces or any page."""

import os

# How long a waiting CPU thread spins before it sleeps; libgomp reads it when torch loads it. By its default a thread
# spins on while another program has the core that the next one waits for: with one of two cores busy (a build in the
# background) a block takes 5.5 s instead of 0.4 s. Longer helps nothing on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "4000")
