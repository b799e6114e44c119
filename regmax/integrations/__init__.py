"""regmax in other libraries' models and files: Hugging Face transformers, torch.save.

Each module imports its library lazily. It may import all chapters except testing, plots and cli.
"""
