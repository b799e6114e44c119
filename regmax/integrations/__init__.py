"""Other libraries' models and files with regmax's mappings: Hugging Face, torch.save.

Each module imports its library when asked to; it may import all but testing, plots and cli.
"""
