"""Other libraries' models with regmax's mappings. Each module imports its library when asked to."""
