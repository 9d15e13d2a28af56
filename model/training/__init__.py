"""Makes the embedded model: procedural clips, a judge, and the training of the VAE and the transformer.

Nothing outside this package imports it except the command line; the generator runs without it.
"""
