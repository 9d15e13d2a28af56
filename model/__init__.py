"""The generator: causal Wan transformer and VAE as one graph. Knows nothing of Gradio, spaces or any page."""
