"""Memory of a run on its GPUs, estimated from the model's config.json and the sizes of the run, in bytes.

It knows no trainer, and imports no torch and no transformers: adapters pass the numbers and the GPUs that they found.
"""
